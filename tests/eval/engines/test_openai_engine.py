"""A server may be slow, flaky, wrong or gone: no completion is lost, doubled or silently missing."""

import os
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pyarrow.parquet as pq
import pytest

from offleash.eval.engines import load_engine, openai_engine
from offleash.eval.engines.base import Request
from offleash.eval.engines.model import resolve_model
from offleash.eval.engines.openai_engine import OpenAIEngine, served_model
from offleash.eval.errors import ConfigError, EngineError
from offleash.eval.fingerprint import template_fingerprint
from offleash.eval.pool.pool import Pool
from offleash.eval.sampling import Sampling
from offleash.train.cli import main
from tests.chaos.faulty_server import FAULTS, SLOW, FaultyServer, answer

PLAIN = Sampling(max_new_tokens=20)
MESSAGES = [{"role": "user", "content": "1 + 2"}]
ENGINES: list[OpenAIEngine] = []


@pytest.fixture
def server() -> Iterator[FaultyServer]:
    made = FaultyServer()
    yield made
    for engine in ENGINES:
        engine.close()
    ENGINES.clear()
    made.close()


def engine_for(server: FaultyServer, **options: Any) -> OpenAIEngine:
    made = load_engine("openai", served_model(server.url), context=64, **{"pause": 0.001, **options})
    assert isinstance(made, OpenAIEngine)
    ENGINES.append(made)
    return made


def requests(count: int, n: int = 4, prompt: Any = "1 + 2") -> list[Request]:
    return [Request(0, prompt, n * i, n, 1000 * i) for i in range(count)]


def draws(engine: OpenAIEngine, wanted: list[Request], sampling: Sampling = PLAIN) -> dict[int, list[Any]]:
    drawn = [one for one in engine.generate(wanted, sampling) if one is not None]
    assert Counter(d.request.start for d in drawn) == Counter(r.start for r in wanted)
    assert all(len(d.completions) == d.request.n for d in drawn)
    return {d.request.start: d.completions for d in drawn}


def test_every_request_comes_back_once_with_its_own_seed_and_many_are_under_way(server: FaultyServer) -> None:
    server.behave = lambda call, body: time.sleep(0.1)  # type: ignore[func-returns-value]
    found = draws(engine_for(server, concurrency=8), requests(50))
    assert len({c.text for completions in found.values() for c in completions}) == 200
    assert 4 <= server.most <= 8
    assert all(c.logprob == -2.0 * len(c.text) and c.tokens == len(c.text) for c in found[0])


def test_every_sampling_field_is_sent(server: FaultyServer) -> None:
    sampling = Sampling(
        temperature=0.7, top_p=0.9, top_k=5, min_p=0.1, repetition_penalty=1.1, max_new_tokens=7, stop=("#",)
    )
    found = draws(engine_for(server), requests(1), sampling)
    (body,) = server.bodies
    sent = {"temperature": 0.7, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "repetition_penalty": 1.1, "max_tokens": 7}
    assert sent.items() <= body.items()
    assert body["stop"] == ["#"]
    assert found[0][0].logprob is None  # the server's is of another distribution
    server.bodies.clear()
    draws(engine_for(server), requests(1))
    assert server.bodies[0]["top_k"] == -1
    assert server.bodies[0]["min_p"] == 0.0


def test_messages_go_to_chat_and_token_ids_to_completions(server: FaultyServer) -> None:
    engine = engine_for(server)
    chat = draws(engine, requests(1, prompt=MESSAGES))
    draws(engine, requests(1, prompt=[4, 5, 6]))
    assert server.paths == ["/v1/chat/completions", "/v1/completions"]
    assert server.bodies[0]["messages"] == MESSAGES
    assert server.bodies[1]["prompt"] == [4, 5, 6]
    assert chat[0][0].logprob == -2.0 * len(chat[0][0].text)


def test_passing_failures_are_tried_again_and_change_nothing(server: FaultyServer) -> None:
    steady = draws(engine_for(server), requests(20))
    failures: list[tuple[int, Any]] = [
        (500, {"error": {"message": "oops"}}),
        (503, b"busy"),
        (429, {"error": "slow down"}),
        (200, b"not json"),
        (200, {"choices": []}),
        (200, {"choices": [{"index": 0, "text": "half", "finish_reason": "abort"}]}),
    ]
    asked: Counter[int] = Counter()

    def fail(call: int, body: Any) -> Any:
        """The first none to three times that a request is made, each time in another way."""
        asked[body["seed"]] += 1
        times, first = asked[body["seed"]], body["seed"] // 1000
        return failures[(first + times) % 6] if times <= first % 4 else None

    server.behave = fail
    found = draws(engine_for(server, retries=6), requests(20))  # on a busy machine a connection may fail besides
    assert found == steady
    assert max(asked.values()) == 4


@pytest.mark.parametrize("fault", FAULTS)
def test_whatever_a_server_sends_is_a_failed_request_that_is_tried_again(server: FaultyServer, fault: str) -> None:
    """None of these may end the thread that asked: whoever waits for it would wait for ever."""
    steady = draws(engine_for(server), requests(3))
    server.bodies.clear()
    server.behave = lambda call, body: fault if call == 2 else None
    seconds = 1.0 if fault in SLOW else 60.0
    assert draws(engine_for(server, retries=20, concurrency=2, timeout=seconds), requests(3)) == steady
    assert len(server.bodies) >= 4


@pytest.mark.parametrize("fault", ["choice null", "message null", "deep", "gzip bomb", "header drip"])
def test_what_is_never_usable_is_told_and_the_rest_comes_back(server: FaultyServer, fault: str) -> None:
    server.behave = lambda call, body: fault if body["seed"] == 1000 else None
    seconds = 1.0 if fault in SLOW else 60.0
    found = draws(engine_for(server, retries=1, timeout=seconds), requests(4))
    assert {c.finish for c in found[4]} == {"error"}
    assert found[4][0].text
    assert sum(body["seed"] == 1000 for body in server.bodies) == 2


def test_a_fault_of_our_own_in_a_thread_ends_the_run(server: FaultyServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OpenAIEngine, "_body", lambda *arguments: 1 / 0)
    with pytest.raises(EngineError, match="ZeroDivisionError"):
        draws(engine_for(server), requests(3))


def test_while_a_request_stalls_the_caller_gets_its_turn(server: FaultyServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openai_engine, "BEAT", 0.01)
    server.behave = lambda call, body: "stall" if body["seed"] == 1000 else None
    stream = engine_for(server).generate(requests(4), PLAIN)
    found: set[int] = set()
    while len(found) < 3:
        drawn = next(stream)
        if drawn is not None:
            found.add(drawn.request.start)
    assert found == {0, 8, 12}
    assert [next(stream) for _ in range(3)] == [None] * 3


def test_a_server_that_drops_connections_is_tried_again(server: FaultyServer) -> None:
    found = draws(engine_for(server), requests(1))

    release = threading.Event()

    def hang(call: int, body: dict[str, Any]) -> None:
        if call == 2:
            release.wait(30)

    server.behave = hang
    assert draws(engine_for(server, timeout=2.0), requests(1)) == found
    release.set()
    assert len(server.bodies) == 3


def test_what_keeps_failing_is_reported_and_the_rest_comes_back(server: FaultyServer) -> None:
    server.behave = lambda call, body: (500, {"error": {"message": "cursed"}}) if body["seed"] == 3000 else None
    found = draws(engine_for(server, retries=2), requests(6))
    assert {c.finish for c in found[12]} == {"error"}
    assert "cursed" in found[12][0].text
    assert all(c.finish == "stop" for start in (0, 4, 8, 16, 20) for c in found[start])
    assert sum(body["seed"] == 3000 for body in server.bodies) == 3


@pytest.mark.parametrize("count", [1, 3, 9])
def test_a_server_that_returns_another_count_is_asked_for_the_rest(server: FaultyServer, count: int) -> None:
    server.behave = lambda call, body: (200, answer(body, count))
    found = draws(engine_for(server), requests(5, n=8))
    assert len({c.text for completions in found.values() for c in completions}) == 40
    assert [body["n"] for body in server.bodies if body["seed"] == 0] == [8]


def test_a_refusal_stops_at_once_with_the_servers_words(server: FaultyServer) -> None:
    server.behave = lambda call, body: (400, {"error": {"message": "min_p is\nnot known"}})
    with pytest.raises(EngineError, match=r"HTTP 400: min_p is not known"):
        draws(engine_for(server), requests(3))
    server.behave = lambda call, body: (400, {"error": "top_k"}) if "top_k" in body else None
    draws(engine_for(server, extensions=False), requests(3))
    with pytest.raises(ConfigError, match=r"top_k.*extensions"):
        draws(engine_for(server, extensions=False), requests(1), replace(PLAIN, top_k=3))


def test_the_server_is_asked_what_it_serves(server: FaultyServer) -> None:
    source = served_model(server.url)
    assert (source.name, source.weights, source.context) == ("numbers", "server:numbers", 128)
    assert source.path == f"{server.url}/v1"
    with pytest.raises(ConfigError, match=r"'other'.*numbers"):
        served_model(f"{server.url}/v1", "other")
    with pytest.raises(EngineError, match=r"http://127.0.0.1:9"):
        served_model("http://127.0.0.1:9")


def test_a_length_of_context_that_is_none_is_unknown() -> None:
    assert openai_engine._contexts({"data": [{"id": "a", "max_model_len": "long"}, {"id": "b"}]}) == {
        "a": None,
        "b": None,
    }


def sample(server: FaultyServer, folder: Path, *words: str) -> int:
    arguments = ["--model", server.url, "--task", "countdown", "--task-args", '{"split": "probe", "n": 4}']
    quick = '{"pause": 0.01, "retries": 1, "concurrency": 4}'
    short = ["--max-new-tokens", "20"]
    return main(["sample", *arguments, "--pool", str(folder), "--k", "40", "--engine-args", quick, *short, *words])


def test_what_arrived_is_saved_while_a_request_stalls(
    server: FaultyServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openai_engine, "BEAT", 0.01)
    stalled = threading.Event()

    def stall_until_the_others_are_on_disk(call: int, body: dict[str, Any]) -> None:
        if call == 7:
            stalled.set()
            while sum(pq.read_metadata(path).num_rows for path in (tmp_path / "pool").glob("samples-*")) < 152:
                time.sleep(0.01)

    server.behave = stall_until_the_others_are_on_disk
    assert sample(server, tmp_path / "pool", "--save-every", "0.01") == 0
    assert stalled.is_set()
    assert Pool.open(tmp_path / "pool").is_complete


def test_partial_failures_are_resumed(server: FaultyServer, tmp_path: Path, capsys: Any) -> None:
    assert sample(server, tmp_path / "steady") == 0
    server.behave = lambda call, body: (500, b"") if call % 5 == 0 or body["seed"] % 4 == 1 else None
    assert sample(server, tmp_path / "incomplete") == 2
    assert "requests failed (HTTP 500: ); the others are kept" in capsys.readouterr().err
    incomplete = Pool.open(tmp_path / "incomplete")
    assert 0 < incomplete.read(["index"]).num_rows < 160
    server.behave = lambda call, body: None
    assert sample(server, tmp_path / "incomplete") == 0
    columns = ["problem_id", "index", "completion"]
    assert incomplete.read(columns).to_pylist() == Pool.open(tmp_path / "steady").read(columns).to_pylist()
    assert incomplete.duplicates() == 0


def test_without_a_tokenizer_the_length_must_be_given(server: FaultyServer, tmp_path: Path, capsys: Any) -> None:
    words = [
        "--model",
        server.url,
        "--task",
        "countdown",
        "--task-args",
        '{"n": 2}',
        "--pool",
        str(tmp_path),
        "--k",
        "2",
    ]
    assert main(["sample", *words]) == 2
    assert "max_new_tokens" in capsys.readouterr().err


@pytest.mark.parametrize(("words", "said"), [([], "identical"), (["--temperature", "0.6"], "repeat beyond chance")])
def test_a_cache_in_front_of_a_server_is_noticed(
    server: FaultyServer, tmp_path: Path, capsys: Any, words: list[str], said: str
) -> None:
    """Also at a temperature at which a server's log-probabilities are of another distribution, and are not used."""
    server.behave = lambda call, body: (200, answer({**body, "seed": len(str(body["prompt"]))}))
    assert sample(server, tmp_path / "pool", *words) == 2
    assert said in capsys.readouterr().err


# vLLM's own server, on the CPU


@pytest.fixture(scope="module")
def vllm_server(vllm_base: Path, tmp_path_factory: Any) -> Iterator[str]:
    import vllm  # noqa: F401  without it these tests must fail, not be skipped

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = ["--model", str(vllm_base), "--served-model-name", "lab", "--dtype", "float32", "--enforce-eager"]
    env = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
    path = tmp_path_factory.mktemp("vllm") / "log"
    words = ["-m", "vllm.entrypoints.openai.api_server", "--port", str(port), "--host", "127.0.0.1", *words]
    with path.open("w") as log:
        process = subprocess.Popen([sys.executable, *words], env=env, stdout=log, stderr=log)
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(300):
            if process.poll() is not None:
                pytest.fail(path.read_text()[-3000:])
            try:
                if httpx.get(f"{url}/health").status_code == 200:
                    break
            except httpx.TransportError:
                pass
            time.sleep(1)
        yield url
    finally:
        process.terminate()
        process.wait(60)


@pytest.mark.slow
def test_vllms_own_server_gives_what_the_model_gives(vllm_server: str, lab_base: Path, lab_model: Any) -> None:
    from offleash.eval.scoring.teacher_forcing import score

    model, tokenizer = lab_model
    prompt = tokenizer("3 7 25 = 46:")["input_ids"]
    engine = OpenAIEngine(served_model(vllm_server, tokenizer=str(lab_base)), context=64, concurrency=8)
    plain = OpenAIEngine(served_model(vllm_server), context=64, concurrency=8)
    wanted = [Request(0, prompt, 8 * i, 8, 1000 * i) for i in range(16)]
    found = draws(engine, wanted)
    completions = [c for start in sorted(found) for c in found[start]]
    rows = [[*tokenizer(c.text, add_special_tokens=False)["input_ids"], 1] for c in completions]
    whole = [i for i, c in enumerate(completions) if len(rows[i]) == c.tokens and c.finish == "stop"]
    assert len(whole) > 100
    scores = score(model, [prompt] * len(whole), [rows[i] for i in whole])
    assert np.allclose(scores.logprob_s, [completions[i].logprob for i in whole], atol=1e-3)
    assert draws(engine, wanted[:4]) == {start: found[start] for start in (0, 8, 16, 24)}
    text = draws(plain, [replace(r, prompt="3 7 25 = 46:") for r in wanted])
    assert {s: [c.text for c in cs] for s, cs in text.items()} == {s: [c.text for c in cs] for s, cs in found.items()}
    engine.close()
    plain.close()


@pytest.mark.slow
def test_a_pool_is_drawn_from_vllms_own_server(vllm_server: str, lab_base: Path, tmp_path: Path) -> None:
    words = ["--task", "countdown", "--task-args", '{"split": "probe", "n": 4}', "--k", "64", "--max-new-tokens", "20"]
    place = ["--model", vllm_server, "--tokenizer", str(lab_base), "--pool", str(tmp_path / "pool")]
    assert main(["sample", *place, *words]) == 0
    pool = Pool.open(tmp_path / "pool")
    assert pool.is_complete
    assert pool.spec.template == template_fingerprint(resolve_model("lab").tokenizer)
    assert 0.1 < pool.hits().correct_p.sum() / 256 < 0.7
