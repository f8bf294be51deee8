"""Stale, partially copied and corrupt weights are caught at every precision, and rounding is not mistaken for them.

A request to the server ends: with its answer however long that takes, with an error once the server is gone.
"""

import copy
import math
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest
import torch

from offleash.callbacks.weight_sync import NOISE, Scores, WeightSyncCheck, find_fault, served_moved, watch_server
from offleash.eval.errors import EngineError
from offleash.eval.problem import Problem
from offleash.eval.tasks import load_task
from offleash.eval.tasks.countdown import Countdown

TEXT = "3 7 25 = 46:25+3*7\n4 6 9 = 19:"
TASK = load_task("countdown", split="train", n=64)


@pytest.fixture(scope="module")
def ids(lab_model: Any) -> list[int]:
    return list(lab_model[1](TEXT)["input_ids"])[:24]


def logps(model: Any, ids: list[int]) -> Any:
    tokens = torch.tensor([ids])
    with torch.no_grad():
        all_logps = model(tokens).logits[0, :-1].float().log_softmax(-1)
    return all_logps.gather(-1, tokens[0, 1:, None])[:, 0].double().numpy()


def nudged(model: Any, size: float, seed: int = 0) -> Any:
    """The model after a step: every weight moved a little."""
    other = copy.deepcopy(model)
    rng = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in other.parameters():
            weight += size * torch.randn(weight.shape, generator=rng)
    return other


def rounded(model: Any, dtype: torch.dtype) -> Any:
    return copy.deepcopy(model).to(dtype)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_an_honest_engine_of_lower_precision_passes_step_after_step(lab_model: Any, ids: list[int], dtype: str) -> None:
    moved_at = None
    for step in range(6):
        policy = nudged(lab_model[0], 1e-4 * step)
        now = Scores(logps(policy, ids), logps(rounded(policy, getattr(torch, dtype)), ids))
        assert find_fault(now, moved_at, NOISE[dtype]) is None
        assert now.difference < NOISE[dtype].between / 5
        moved_at = now if served_moved(now, moved_at) else moved_at


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("garbage", ["noise", "half", "nan"])
def test_garbage_is_caught_at_every_precision(lab_model: Any, ids: list[int], dtype: str, garbage: str) -> None:
    policy = lab_model[0]
    served = nudged(policy, 0.3 if garbage == "noise" else 0.0)
    if garbage == "half":  # the layers of another model, the embeddings of this one
        embeddings = policy.get_input_embeddings().weight.data
        served = nudged(policy, 0.3)
        served.get_input_embeddings().weight.data.copy_(embeddings)
    if garbage == "nan":
        served.get_input_embeddings().weight.data.fill_(math.nan)
    now = Scores(logps(policy, ids), logps(served, ids))
    assert "differ by" in str(find_fault(now, None, NOISE[dtype]))


def stale_run(model: Any, ids: list[int], dtype: str, step_size: float) -> Iterator[Scores]:
    """Scores of a policy that moves on while its engine keeps the first weights."""
    engine_t = logps(rounded(model, getattr(torch, dtype)), ids)
    for step in range(100):
        yield Scores(logps(nudged(model, step_size * step), ids), engine_t)


@pytest.mark.parametrize(("dtype", "step_size", "within"), [("float32", 1e-6, 10), ("bfloat16", 2e-4, 50)])
def test_an_engine_that_stands_still_is_caught_while_the_difference_is_within_rounding(
    lab_model: Any, ids: list[int], dtype: str, step_size: float, within: int
) -> None:
    moved_at, faults = None, []
    for now in stale_run(lab_model[0], ids, dtype, step_size):
        faults.append(find_fault(now, moved_at, NOISE[dtype]))
        if faults[-1] is not None:
            break
        moved_at = now if served_moved(now, moved_at) else moved_at
    assert "in the trainer and by 0 in vLLM" in str(faults[-1])
    assert 1 < len(faults) < within
    assert now.difference < NOISE[dtype].between


def test_weights_that_nobody_moves_are_no_fault(lab_model: Any, ids: list[int]) -> None:
    now = Scores(logps(lab_model[0], ids), logps(lab_model[0], ids))
    assert find_fault(now, now, NOISE["float32"]) is None
    assert now.difference == 0


class Server:
    """In place of vLLM's server: a model that takes over the trainer's weights only when it is told to."""

    def __init__(self, model: Any) -> None:
        self.served, self.calls, self.gone = copy.deepcopy(model), 0, False
        self.base_url, self.model = "http://here", "lab"

    def take(self, model: Any) -> None:
        self.served.load_state_dict(model.state_dict())

    def get_server_info(self) -> dict[str, Any]:
        return {"model_config": {"dtype": "torch.float32"}}

    def _post(self, url: str, json: dict[str, Any]) -> dict[str, Any]:
        if self.gone:
            raise ConnectionError("connection refused")
        self.calls += 1
        choices = []
        for ids in json["prompt"]:
            values = logps(self.served, ids)
            rows = [{str(token): {"logprob": value}} for token, value in zip(ids[1:], values, strict=True)]
            choices.append({"prompt_logprobs": [None, *rows]})
        return {"choices": choices}


@pytest.fixture
def watched(make_trainer: Any, lab_model: Any) -> tuple[Any, WeightSyncCheck, Server]:
    trainer = make_trainer()
    server = Server(lab_model[0])
    trainer.vllm_generation = SimpleNamespace(mode="server", vllm_client=server, generate=lambda: "drawn")
    return trainer, WeightSyncCheck(trainer, TASK), server


def step(trainer: Any, size: float = 1e-3) -> None:
    trainer.state.global_step += 1
    with torch.no_grad():
        for weight in trainer.model.parameters():
            weight.mul_(1 + size)


def test_the_engine_is_checked_once_before_the_first_draw_of_a_step(watched: Any) -> None:
    trainer, _, server = watched
    assert [trainer.vllm_generation.generate() for _ in range(3)] == ["drawn"] * 3
    assert server.calls == 1
    step(trainer, 0.0)
    trainer.vllm_generation.generate()
    assert server.calls == 2


def test_a_missed_copy_stops_the_draw_and_goes_on_stopping_it(watched: Any) -> None:
    trainer, _, server = watched
    trainer.vllm_generation.generate()
    step(trainer)
    for _ in range(2):  # the monitor may have swallowed the first
        with pytest.raises(EngineError, match=r"\(step 1, process 0\)"):
            trainer.vllm_generation.generate()
    server.take(trainer.model)
    assert trainer.vllm_generation.generate() == "drawn"


def test_the_base_in_the_policys_place_is_checked_as_itself(watched: Any) -> None:
    trainer, _, server = watched
    step(trainer)
    server.take(trainer.model)
    trainer.vllm_generation.generate()
    trainer.model = trainer.ref_model
    with pytest.raises(EngineError, match="vllm_model_impl"):
        trainer.vllm_generation.generate()
    server.take(trainer.ref_model)
    assert trainer.vllm_generation.generate() == "drawn"


def test_a_server_that_is_gone_ends_the_run_with_what_to_do(watched: Any) -> None:
    trainer, _, server = watched
    server.gone = True
    with pytest.raises(EngineError, match=r"http://here .*connection refused.* --resume"):
        trainer.vllm_generation.generate()


def test_checking_leaves_randomness_and_train_mode_alone(watched: Any) -> None:
    trainer, callback, _ = watched
    trainer.model.train()
    before = torch.get_rng_state(), np.random.get_state()[1].tolist()
    callback.check()
    assert trainer.model.training
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.random.get_state()[1].tolist() == before[1]


def test_the_difference_is_logged_under_its_name(watched: Any, read_scalars: Any, tmp_path: Any) -> None:
    trainer, callback, _ = watched
    trainer.vllm_generation.generate()
    trainer.callback_handler.on_train_begin(trainer.args, trainer.state, trainer.control)
    trainer.state.global_step = 1
    callback.on_log(trainer.args, trainer.state, trainer.control, logs={"reward": 1.0})
    callback.on_log(trainer.args, trainer.state, trainer.control, logs={"train_runtime": 1.0})
    assert read_scalars(tmp_path)["monitor/served_logp_difference"] == [(1, pytest.approx(0, abs=1e-5))]


def test_what_is_scored_are_the_ends_of_the_prompts_and_their_golds_one_sequence_each(make_trainer: Any) -> None:
    trainer = make_trainer(max_completion_length=20)
    header = "1 2 3 = 6:" * 20  # as a chat template's, the same for all
    trainer.train_dataset = trainer.train_dataset.map(lambda row: {"prompt": header + row["prompt"]})
    trainer.vllm_generation = SimpleNamespace(mode="colocate", generate=None)
    texts = [trainer.processing_class.decode(ids) for ids in WeightSyncCheck(trainer, TASK).ids]
    ends = [problem.prompt + problem.gold for problem in TASK.problems[:4]]
    assert len(texts) == 4
    assert all(text.endswith(end) for text, end in zip(texts, ends, strict=True))
    assert all(len(text) < len(header) for text in texts)

    class Written(Countdown):
        def gold_completion(self, problem: Problem) -> str:
            return f"1+2{problem.gold}" + "*2" * 100

    ids = WeightSyncCheck(trainer, Written(split="train", n=64)).ids
    bare = WeightSyncCheck(trainer).ids
    for problem, row, prompt in zip(TASK.problems, ids, bare, strict=False):
        assert row[: len(prompt)] == prompt
        assert trainer.processing_class.decode(row[len(prompt) :]).startswith(f"1+2{problem.gold}")
        assert len(row) == len(prompt) + 19  # and one that the engine draws


def test_a_sequence_counts_the_same_beside_longer_ones(watched: Any) -> None:
    trainer, callback, _ = watched
    callback.ids = [callback.ids[0][:5], callback.ids[1], callback.ids[2][:9]]
    each = [logps(trainer.model, ids) for ids in callback.ids]
    assert callback._trainer_logps() == pytest.approx(np.concatenate(each), abs=1e-5)


class Sleeper:
    """In place of TRL's colocated engine in sleep mode: a draw without weights copies them, and drops them after."""

    mode, enable_sleep_mode = "colocate", True

    def __init__(self, model: Any, held: Any) -> None:
        self.model, self.held = model, held
        self.copies, self.broken, self._llm_weights_sleeping = 0, False, True
        model_config = SimpleNamespace(dtype="float32")
        self.llm = SimpleNamespace(
            wake_up=lambda tags: None, generate=self.scored, llm_engine=SimpleNamespace(model_config=model_config)
        )

    def sync_weights(self) -> None:
        self.copies, self._llm_weights_sleeping = self.copies + 1, False
        self.held.load_state_dict(self.model.state_dict())
        self.held = nudged(self.held, 0.3 if self.broken else 0.0)

    def scored(self, prompts: list[dict[str, list[int]]], *_: Any, **__: Any) -> list[Any]:
        assert not self._llm_weights_sleeping
        outputs = []
        for prompt in prompts:
            ids = prompt["prompt_token_ids"]
            pairs = zip(ids[1:], logps(self.held, ids), strict=True)
            rows = [{token: SimpleNamespace(logprob=value)} for token, value in pairs]
            outputs.append(SimpleNamespace(prompt_logprobs=[None, *rows]))
        return outputs

    def generate(self) -> str:
        if self._llm_weights_sleeping:
            self.sync_weights()
        self._llm_weights_sleeping = True
        return "drawn"


def test_in_sleep_mode_every_copy_is_checked(
    make_trainer: Any, lab_model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(SamplingParams=dict))
    trainer = make_trainer()
    engine = trainer.vllm_generation = Sleeper(trainer.model, copy.deepcopy(lab_model[0]))
    callback = WeightSyncCheck(trainer, TASK)
    engine.sync_weights()  # by the trainer, for a new step
    assert [engine.generate() for _ in range(3)] == ["drawn"] * 3
    assert engine.copies == 3
    assert len(callback.differences) == 3
    engine.broken = True
    with pytest.raises(EngineError, match=r"\(step 0, process 0\)"):
        engine.generate()


class Web(ThreadingHTTPServer):
    """Answers a POST when it is let go, and says whether it is well."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.go, self.asked, self.go_at = threading.Event(), 0, 100
        self.unwell: set[int] = set()


class Handler(BaseHTTPRequestHandler):
    server: Web

    def do_GET(self) -> None:
        self.server.asked += 1
        if self.server.asked == self.server.go_at:
            self.server.go.set()
        self.send_response(503 if self.server.asked in self.server.unwell else 200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_POST(self) -> None:
        self.server.go.wait(30)
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def web() -> Iterator[Web]:
    made = Web()
    threading.Thread(target=made.serve_forever, daemon=True).start()
    yield made
    made.go.set()
    made.shutdown()
    made.server_close()


@pytest.fixture
def trainer_of(stand_in_trainer: Any) -> Any:
    return lambda client: stand_in_trainer(vllm_generation=SimpleNamespace(vllm_client=client))


@pytest.fixture
def client(web: Web, trainer_of: Any) -> Any:
    url = f"http://127.0.0.1:{web.server_address[1]}"
    made = SimpleNamespace(base_url=url, _post=lambda url, **kwargs: httpx.post(url, timeout=None, **kwargs).text)
    watch_server(trainer_of(made), every=0.05)
    return made


def test_a_slow_answer_is_waited_for_while_the_server_is_well(web: Web, client: Any) -> None:
    web.go_at = 5
    assert client._post(client.base_url, json={}) == "ok"
    assert web.asked >= 5


def test_a_server_that_holds_a_request_and_is_not_well_is_given_up(web: Web, client: Any) -> None:
    web.unwell = {1, 2, 3}
    start = time.monotonic()
    with pytest.raises(EngineError, match=r"3 times.*--resume"):
        client._post(client.base_url, json={})
    assert web.asked == 3
    assert time.monotonic() - start < 20


def test_a_server_too_busy_to_tell_of_its_health_is_waited_for(
    web: Web, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def late(url: str, **kwargs: Any) -> Any:
        asked.append(url)
        if len(asked) == 5:
            web.go.set()
        raise httpx.ReadTimeout("no answer within 10 seconds")

    monkeypatch.setattr(httpx, "get", late)
    assert client._post(client.base_url, json={}) == "ok"
    assert len(asked) >= 5


@pytest.mark.long
def test_a_second_thread_whose_server_is_gone_ends_the_process(tmp_path: Path) -> None:
    """TRL's main thread would wait for ever: it sends weights to the server, and reads the answer afterwards."""
    script = (
        "import threading, time\n"
        "from offleash.callbacks.weight_sync import _answer\n"
        "def refused(): raise ConnectionError('refused')\n"
        "threading.Thread(target=_answer, args=(0.1, 'http://127.0.0.1:9', refused)).start()\n"
        "time.sleep(60)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=55, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("offleash: error: the vLLM server at http://127.0.0.1:9 does not answer (refused)")


def test_a_moment_of_weakness_is_forgiven(web: Web, client: Any) -> None:
    web.unwell = {1, 2, 4, 5}
    web.go_at = 6
    assert client._post(client.base_url, json={}) == "ok"


def test_another_error_of_a_request_stays_what_it_is(client: Any, trainer_of: Any) -> None:
    def refuse(url: str, **kwargs: Any) -> Any:
        raise RuntimeError("Request failed: 400, prompt too long")

    client._post = refuse
    watch_server(trainer_of(client))
    with pytest.raises(RuntimeError, match="prompt too long"):
        client._post(client.base_url)
