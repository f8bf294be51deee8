"""vLLM for real, on the CPU: the model's own distribution, explicit seeds, and nothing taken from generation_config.

Slow, and failing where vLLM is missing: a test of an engine that is not there proves nothing.
"""

import math
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")

from offleash.eval.engines import load_engine
from offleash.eval.engines.base import Request
from offleash.eval.engines.model import ModelSource, resolve_model
from offleash.eval.engines.prompts import prepare_prompts
from offleash.eval.engines.vllm_seam import SCORING
from offleash.eval.errors import ConfigError
from offleash.eval.pool.pool import Pool
from offleash.eval.sampling import Sampling
from offleash.eval.scoring.exact import exact_units
from offleash.eval.scoring.teacher_forcing import score
from offleash.eval.tasks import load_task
from offleash.train.cli import main

pytestmark = pytest.mark.slow

K = 512
LENGTH = 20
PLAIN = Sampling(max_new_tokens=LENGTH)


@pytest.fixture(scope="module")
def source(tmp_path_factory: Any, vllm_base: Path) -> ModelSource:
    """The lab's model with a generation_config that would ruin every draw if it were used."""
    folder = tmp_path_factory.mktemp("model")
    for path in vllm_base.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    config = '{"temperature": 0.01, "top_k": 1, "do_sample": true, "repetition_penalty": 9.0, "eos_token_id": 1}'
    (folder / "generation_config.json").write_text(config)
    return resolve_model(str(folder))


@pytest.fixture(scope="module")
def engine(source: ModelSource) -> Iterator[Any]:
    # So few tokens at once that a prompt's prefill would be cut, if it may be: that kills a CPU engine with seeds.
    made = load_engine("vllm", source, context=64, max_num_batched_tokens=200)
    yield made
    made.close()


@pytest.fixture(scope="module")
def task() -> Any:
    return load_task("countdown", split="probe", n=8)


@pytest.fixture(scope="module")
def prompts(source: ModelSource, task: Any) -> list[Any]:
    return prepare_prompts(task.problems, source.tokenizer).prompts


def draws(engine: Any, wanted: list[Request], sampling: Sampling = PLAIN) -> dict[tuple[int, int], list[Any]]:
    drawn = [one for one in engine.generate(wanted, sampling) if one is not None]
    assert len(drawn) == len(wanted)
    assert all(len(d.completions) == d.request.n for d in drawn)
    return {(d.request.problem, d.request.start): d.completions for d in drawn}


def blocks(prompts: list[Any], k: int, n: int = 16) -> list[Request]:
    return [
        Request(p, prompt, start, n, 10_000 * p + 1000 * start)
        for p, prompt in enumerate(prompts)
        for start in range(0, k, n)
    ]


def scored(lab_model: Any, prompts: list[Any], found: dict[Any, list[Any]], temperature: float) -> tuple[Any, Any]:
    """(engine's log-probabilities, teacher forcing's) of the completions whose tokens the text gives back."""
    model, tokenizer = lab_model
    rows = []
    for (problem, _), completions in found.items():
        for c in completions:
            ids = [*tokenizer(c.text, add_special_tokens=False)["input_ids"], *([1] if c.finish == "stop" else [])]
            if len(ids) == c.tokens:
                rows.append((prompts[problem], ids, c.logprob))
    assert len(rows) > 0.9 * sum(map(len, found.values()))
    scores = score(model, [r[0] for r in rows], [r[1] for r in rows], temperature=temperature)
    return np.array([r[2] for r in rows]), scores.logprob_s


def test_sampled_hits_agree_with_the_exact_probabilities(
    engine: Any, lab_model: Any, task: Any, prompts: list[Any]
) -> None:
    found = draws(engine, blocks(prompts, K))
    exact = exact_units(*lab_model, task, task.problems, max_new_tokens=LENGTH)
    texts = [[c.text for s in range(0, K, 16) for c in found[p, s]] for p in range(8)]
    answers = [
        [v.answer for v in task.verify([problem] * K, texts[p]) if v.correct] for p, problem in enumerate(task.problems)
    ]
    units = zip(exact.unit_problem.tolist(), exact.unit_answer, strict=True)
    hits, p = np.array([answers[p].count(answer) for p, answer in units]), exact.probability_u
    z = (hits - K * p) / np.sqrt(K * p * (1 - p) + 1e-12)
    regular = K * p > 5
    assert regular.sum() > 5  # the task has 10 units here
    assert np.abs(z[regular]).max() < 4.5
    assert (z[regular] ** 2).sum() == pytest.approx(regular.sum(), abs=4 * math.sqrt(2 * regular.sum()))


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_the_log_probability_is_that_of_teacher_forcing(
    engine: Any, lab_model: Any, prompts: list[Any], temperature: float
) -> None:
    found = draws(engine, blocks(prompts, 16), replace(PLAIN, temperature=temperature))
    ours, forced = scored(lab_model, prompts, found, temperature)
    assert np.allclose(ours, forced, atol=1e-4)


def test_a_request_has_its_own_seed_alone_and_among_others(engine: Any, prompts: list[Any]) -> None:
    wanted = blocks(prompts, 64)
    found = draws(engine, wanted)
    alone = draws(engine, wanted[5:6])
    same = [c.text == d.text for key, cs in alone.items() for c, d in zip(cs, found[key], strict=True)]
    assert sum(same) >= 15  # arithmetic may depend on the batch, and a draw on its last bit
    texts = [tuple(c.text for c in cs) for cs in found.values()]
    assert len(set(texts)) == len(texts)


def test_truncation_stop_texts_and_length_mean_what_they_mean_elsewhere(engine: Any, prompts: list[Any]) -> None:
    one = [Request(0, prompts[0], 0, 16, 3)]
    greedy = draws(engine, one, replace(PLAIN, top_k=1))[0, 0]
    assert {c.text for c in greedy} == {greedy[0].text}
    assert all(c.logprob == pytest.approx(0.0, abs=1e-5) for c in greedy)
    plain, stopped = draws(engine, one)[0, 0], draws(engine, one, replace(PLAIN, stop=("+", "-")))[0, 0]
    assert any("+" in c.text for c in plain)
    assert [c.text for c in stopped] == [c.text.split("+")[0].split("-")[0] for c in plain]
    assert {c.finish for c in stopped} == {"stop"}
    short = draws(engine, one, replace(PLAIN, max_new_tokens=3))[0, 0]
    assert {(c.finish, c.tokens) for c in short} == {("length", 3)}


def test_more_requests_than_fit_at_once_all_come_back(engine: Any, prompts: list[Any]) -> None:
    room, engine.room = engine.room, 48
    try:
        found = draws(engine, blocks(prompts, 128))
    finally:
        engine.room = room
    assert len(found) == 64


def test_stopping_in_the_middle_leaves_the_engine_usable(engine: Any, prompts: list[Any]) -> None:
    stream = engine.generate(blocks(prompts, 128), PLAIN)
    next(stream)
    stream.close()
    wanted = blocks(prompts[:1], 16)
    assert set(draws(engine, wanted)) == {(0, 0)}


def test_the_command_draws_a_pool(tmp_path: Path, vllm_base: Path, capsys: Any) -> None:
    model = ["sample", "--model", str(vllm_base), "--engine", "vllm"]
    words = ["--task", "countdown", "--task-args", '{"split": "probe", "n": 4}', "--k", "40", "--max-new-tokens", "20"]
    assert main([*model, "--pool", str(tmp_path / "pool"), *words]) == 0
    pool = Pool.open(tmp_path / "pool")
    assert pool.is_complete
    assert pool.spec.engine == "vllm"
    assert any(name.startswith("vllm") for name in pool.spec.versions)
    assert "drew 160 samples" in capsys.readouterr().out
    bad = ["--engine-args", '{"no_such_option": 1}']
    assert main([*model, "--pool", str(tmp_path / "other"), *words, *bad]) == 2
    assert "vLLM cannot start" in capsys.readouterr().err


def test_an_adapter_is_put_on_its_model(tmp_path: Path, vllm_base: Path, prompts: list[Any]) -> None:
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(vllm_base, dtype="float32")
    adapted = get_peft_model(base, LoraConfig(r=8, target_modules=["q_proj", "v_proj"], init_lora_weights=False))
    adapted.peft_config["default"].base_model_name_or_path = str(vllm_base)
    adapted.save_pretrained(tmp_path)
    source = resolve_model(str(tmp_path))
    made = load_engine("vllm", source, context=64)
    try:
        found = draws(made, blocks(prompts, 16))
    finally:
        made.close()
    merged = adapted.merge_and_unload().eval()
    ours, forced = scored((merged, source.tokenizer), prompts, found, 1.0)
    assert np.allclose(ours, forced, atol=1e-3)


def test_attention_heads_that_the_cpu_kernels_do_not_know_are_refused_before_the_engine_starts() -> None:
    with pytest.raises(ConfigError, match=r"size is 24.*--engine transformers"):
        load_engine("vllm", resolve_model("lab"), context=64)


def test_scoring_prompts_takes_nothing_from_the_random_state_that_seeds_rollouts(monkeypatch: Any) -> None:
    """In the model runner of GPUs, which does not run here: its bookkeeping of requests does, without its memory."""
    from vllm import SamplingParams
    from vllm.v1.worker.gpu.sample import states

    class Column:
        def __init__(self, size: int, dtype: Any) -> None:
            self.np = np.zeros(size, dtype=str(dtype).removeprefix("torch."))

        def copy_to_uva(self) -> None:
            pass

    monkeypatch.setattr(states, "UvaBackedTensor", Column)
    requests = states.SamplingStates(8, 100)

    def next_seed(*former: dict[str, Any]) -> int:
        np.random.seed(0)
        for options in (*former, {}):
            requests.add_request(0, SamplingParams(**options))
        return int(requests.seeds.np[0])

    assert next_seed(SCORING) == next_seed()
    assert next_seed({**SCORING, "seed": None}) != next_seed()
