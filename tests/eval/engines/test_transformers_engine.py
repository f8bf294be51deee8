"""The default engine draws from the model's own distribution, seed by seed, and knows what each draw's chance was."""

import math
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from offleash.eval.engines import load_engine
from offleash.eval.engines.base import Request
from offleash.eval.engines.model import ModelSource, resolve_model
from offleash.eval.engines.prompts import prepare_prompts
from offleash.eval.engines.transformers_engine import TransformersEngine
from offleash.eval.errors import ConfigError, EngineError
from offleash.eval.pool.fill import Fill
from offleash.eval.pool.pool import Pool
from offleash.eval.pool.testing import make_pool
from offleash.eval.problem import Problem
from offleash.eval.sampling import Sampling
from offleash.eval.scoring.exact import exact_units
from offleash.eval.scoring.teacher_forcing import score
from offleash.eval.tasks import load_task

K = 256
LENGTH = 20
PLAIN = Sampling(max_new_tokens=LENGTH)


@pytest.fixture(scope="module")
def source() -> ModelSource:
    return resolve_model("lab")


@pytest.fixture(scope="module")
def engine(source: ModelSource) -> TransformersEngine:
    made = load_engine("transformers", source, context=64)
    assert isinstance(made, TransformersEngine)
    return made


@pytest.fixture(scope="module")
def task() -> Any:
    return load_task(
        "countdown", split="probe", n=20, numbers=4, max_number=12, max_target=60, min_solutions=3, strict=True
    )


@pytest.fixture(scope="module")
def prompts(source: ModelSource, task: Any) -> list[Any]:
    return prepare_prompts(task.problems, source.tokenizer).prompts


@pytest.fixture(scope="module")
def pool(tmp_path_factory: Any, engine: Any, task: Any, prompts: Any) -> Pool:
    answers = [task.correct_answers(problem) for problem in task.problems]
    made = make_pool(
        tmp_path_factory.mktemp("pool") / "p", None, K, task.problems, answers, max_new_tokens=LENGTH, task=task.name
    )
    Fill(made, task, engine, prompts, PLAIN).run(progress=False)
    return made


def one(engine: TransformersEngine, prompt: Any, sampling: Sampling, n: int = 32, seed: int = 1) -> list[Any]:
    ((_, completions),) = engine.generate([Request(0, prompt, 0, n, seed)], sampling)
    return completions


def ids_of(source: ModelSource, completion: Any) -> list[int]:
    ids = source.tokenizer(completion.text, add_special_tokens=False)["input_ids"]
    return [*ids, source.tokenizer.eos_token_id] if completion.finish == "stop" else ids


@pytest.mark.long
def test_sampled_hits_agree_with_the_exact_probabilities(
    engine: Any, source: ModelSource, task: Any, pool: Pool
) -> None:
    exact = exact_units(engine.model, source.tokenizer, task, task.problems, max_new_tokens=LENGTH)
    hits, p = pool.hits().unit_hits, exact.probability_u
    z = (hits - K * p) / np.sqrt(K * p * (1 - p) + 1e-12)
    regular = K * p > 5
    assert regular.sum() > 10
    assert np.abs(z[regular]).max() < 4.5
    assert (z[regular] ** 2).sum() == pytest.approx(regular.sum(), abs=4 * math.sqrt(2 * regular.sum()))


@pytest.mark.parametrize("temperature", [1.0, 0.7, 1.3])
def test_the_log_probability_is_that_of_teacher_forcing(
    engine: Any, source: ModelSource, prompts: Any, temperature: float
) -> None:
    sampling = replace(PLAIN, temperature=temperature)
    requests = [Request(p, prompts[p], 0, 8, p) for p in range(8)]
    drawn = list(engine.generate(requests, sampling))
    rows = [(prompts[r.problem], ids_of(source, c), c) for r, completions in drawn for c in completions]
    # A special token drawn in the middle is not in the text, and cannot be scored from it.
    rows = [row for row in rows if len(row[1]) == row[2].tokens]
    assert len(rows) >= 60
    scores = score(engine.model, [r[0] for r in rows], [r[1] for r in rows], temperature=temperature)
    assert np.allclose([c.logprob for _, _, c in rows], scores.logprob_s, atol=1e-4)


def test_a_request_gives_the_same_draws_alone_and_among_others(engine: Any, prompts: Any) -> None:
    requests = [Request(p, prompts[p], 0, 12, 100 + p) for p in range(12)]
    together = {r.problem: [c.text for c in completions] for r, completions in engine.generate(requests, PLAIN)}
    for request in requests[::4]:
        assert [c.text for c in one(engine, request.prompt, PLAIN, 12, request.seed)] == together[request.problem]
    assert [c.text for c in one(engine, prompts[0], PLAIN, 12, 7)] != together[0]


def test_a_request_bigger_than_a_batch_is_cut_and_put_together(source: ModelSource, prompts: Any) -> None:
    small = TransformersEngine(source, context=64, batch_size=10)
    requests = [Request(0, prompts[0], 0, 27, 5), Request(1, prompts[1], 0, 4, 6)]
    drawn = list(small.generate(requests, PLAIN))
    assert [(r.problem, len(completions)) for r, completions in drawn] == [(0, 27), (1, 4)]
    assert len({c.text for c in drawn[0].completions}) > 5
    assert [c.text for c in drawn[0].completions[:10]] != [c.text for c in drawn[0].completions[10:20]]
    assert list(small.generate(requests, PLAIN)) == drawn


def test_truncation_cuts_the_tail_and_the_log_probability_says_so(
    engine: Any, source: ModelSource, prompts: Any
) -> None:
    greedy = one(engine, prompts[0], replace(PLAIN, top_k=1))
    assert {c.text for c in greedy} == {greedy[0].text}
    assert all(c.logprob == pytest.approx(0.0, abs=1e-5) for c in greedy)
    for change in ({"top_p": 0.3}, {"min_p": 0.5}, {"top_k": 2}):
        cut = one(engine, prompts[0], replace(PLAIN, **change), n=64)
        assert len({c.text for c in cut}) < len({c.text for c in one(engine, prompts[0], PLAIN, n=64)})
        full = score(engine.model, [prompts[0]] * 64, [ids_of(source, c) for c in cut]).logprob_s
        assert np.all(np.array([c.logprob for c in cut]) >= full - 1e-4)


def test_a_penalty_changes_what_is_drawn(engine: Any, prompts: Any) -> None:
    assert one(engine, prompts[0], replace(PLAIN, repetition_penalty=1.5)) != one(engine, prompts[0], PLAIN)


def test_a_stop_text_ends_a_completion_and_is_cut_from_it(engine: Any, prompts: Any) -> None:
    plain, stopped = one(engine, prompts[0], PLAIN), one(engine, prompts[0], replace(PLAIN, stop=("+", "-")))
    assert any("+" in c.text for c in plain)
    for whole, cut in zip(plain, stopped, strict=True):
        # The same draws up to there: the seed is the same.
        assert cut.text == whole.text.split("+")[0].split("-")[0]
        assert cut.finish == "stop"
        assert cut.tokens == (len(cut.text) + 1)


def test_a_completion_at_the_length_limit_is_marked(engine: Any, prompts: Any) -> None:
    short = one(engine, prompts[0], replace(PLAIN, max_new_tokens=3))
    assert {c.finish for c in short} == {"length"}
    assert {c.tokens for c in short} == {3}


def test_the_models_generation_config_plays_no_part(tmp_path: Path, lab_base: Path, engine: Any, prompts: Any) -> None:
    for path in lab_base.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    config = '{"temperature": 0.01, "top_k": 1, "do_sample": true, "repetition_penalty": 9.0, "eos_token_id": [1, 5]}'
    (tmp_path / "generation_config.json").write_text(config)
    other = resolve_model(str(tmp_path))
    assert other.end_ids == (1, 5)
    assert len(other.extra_end_tokens) == 1
    made = TransformersEngine(replace(other, end_ids=(1,)), context=64)
    assert one(made, prompts[0], PLAIN) == one(engine, prompts[0], PLAIN)
    assert other.weights == resolve_model("lab").weights


# Prompts


CHAT = "{% for m in messages %}{{ m.content }}{% endfor %}{% if add_generation_prompt %} ={% endif %}"
MESSAGES = [Problem("a", [{"role": "user", "content": "1 2"}], "3"), Problem("b", "1 2", "3")]


def test_messages_go_through_the_template_and_text_does_not(source: ModelSource, tmp_path: Path) -> None:
    tokenizer = resolve_model("lab").tokenizer
    plain = prepare_prompts(MESSAGES, tokenizer)
    assert plain.prompts == [tokenizer("1 2\n")["input_ids"], tokenizer("1 2")["input_ids"]]
    assert plain.template.startswith("plain:")
    (tmp_path / "chat.jinja").write_text(CHAT)
    chat = prepare_prompts(MESSAGES, tokenizer, str(tmp_path / "chat.jinja"))
    assert chat.prompts == [tokenizer("1 2 =")["input_ids"], tokenizer("1 2")["input_ids"]]
    assert prepare_prompts(MESSAGES, tokenizer).prompts == chat.prompts  # it is the tokenizer's own now
    assert prepare_prompts(MESSAGES, tokenizer, "plain").prompts == plain.prompts
    assert len({plain.template, chat.template, prepare_prompts(MESSAGES[1:], source.tokenizer).template}) == 3
    with_arguments = prepare_prompts(MESSAGES, tokenizer, "auto", {"enable_thinking": False})
    assert with_arguments.template != chat.template


def test_prompts_that_cannot_be_tokenized_are_refused() -> None:
    tokenizer = resolve_model("lab").tokenizer
    image = Problem("i", [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}], "3")
    with pytest.raises(ConfigError, match=r"'i'.*image_url"):
        prepare_prompts([image], tokenizer)
    with pytest.raises(ConfigError, match="'e'"):
        prepare_prompts([Problem("e", "", "3")], tokenizer)
    with pytest.raises(ConfigError, match="enable_thinking"):
        prepare_prompts(MESSAGES, tokenizer, "auto", {"enable_thinking": False})


def broken(folder: Path, lab_base: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> ModelSource:
    """The lab model with other tensors in its file."""
    shutil.copytree(lab_base, folder, dirs_exist_ok=True)
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return resolve_model(str(folder))


def test_a_model_that_lacks_tensors_is_refused_by_their_names(tmp_path: Path, lab_base: Path) -> None:
    def drop(tensors: dict[str, torch.Tensor]) -> None:
        for name in ("model.norm.weight", "model.layers.0.self_attn.q_proj.weight"):
            del tensors[name]

    found = broken(tmp_path, lab_base, drop)
    with pytest.raises(
        ConfigError, match=r"files .* model\.layers\.0\.self_attn\.q_proj\.weight, model\.norm\.weight, "
    ):
        TransformersEngine(found, context=64)


def test_a_tensor_of_another_shape_is_refused_by_its_name(tmp_path: Path, lab_base: Path) -> None:
    def cut(tensors: dict[str, torch.Tensor]) -> None:
        tensors["model.norm.weight"] = tensors["model.norm.weight"][:-1].clone()

    found = broken(tmp_path, lab_base, cut)
    with pytest.raises(ConfigError, match=r"shape of model\.norm\.weight"):
        TransformersEngine(found, context=64)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.json", b"[]"),
        ("config.json", b'{"model_type": "llama", "hidden_size": "x"}'),
        ("model.safetensors", b'\x36\0\0\0\0\0\0\0{"a":{"dtype":"F99","shape":[1],"data_offsets":[0,4]}}abcd'),
        ("adapter_config.json", b"{"),
        ("adapter_config.json", b"[]"),
        ("adapter_config.json", b'{"base_model_name_or_path": "lab"}'),
    ],
)
def test_files_that_hold_something_else_are_named(tmp_path: Path, lab_base: Path, name: str, content: bytes) -> None:
    shutil.copytree(lab_base, tmp_path, dirs_exist_ok=True)
    (tmp_path / name).write_bytes(content.replace(b'"lab"', f'"{lab_base}"'.encode()))
    with pytest.raises(ConfigError, match=re.escape(str(tmp_path))):
        TransformersEngine(resolve_model(str(tmp_path)), context=64)


@pytest.mark.parametrize("device", ["nowhere", "meta", pytest.param("cuda:99", id="no such GPU")])
def test_a_device_that_is_not_there_is_named(source: ModelSource, device: str) -> None:
    with pytest.raises(ConfigError, match=device):
        TransformersEngine(source, context=64, device=device)


def test_a_model_whose_weights_are_not_numbers_gives_no_samples(tmp_path: Path, lab_base: Path, prompts: Any) -> None:
    def spoil(tensors: dict[str, torch.Tensor]) -> None:
        tensors["model.norm.weight"] *= math.nan

    made = TransformersEngine(broken(tmp_path, lab_base, spoil), context=64)
    with pytest.raises(EngineError, match="not numbers"):
        list(made.generate([Request(0, prompts[0], 0, 4, seed=1)], PLAIN))


def test_tensors_that_a_model_does_not_know_are_no_fault_and_a_tied_head_is_not_missing(
    tmp_path: Path, lab_base: Path, engine: Any
) -> None:
    def add(tensors: dict[str, torch.Tensor]) -> None:
        assert "lm_head.weight" not in tensors
        tensors["value_head.weight"] = torch.zeros(1)

    made = TransformersEngine(broken(tmp_path, lab_base, add), context=64)
    assert torch.equal(made.model.lm_head.weight, engine.model.lm_head.weight)


def test_an_adapter_without_its_model_says_so(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text('{"r": 4}')
    with pytest.raises(ConfigError, match="base_model_name_or_path"):
        resolve_model(str(tmp_path))


@pytest.mark.slow
def test_an_adapter_is_put_on_its_model(
    tmp_path: Path, lab_base: Path, lab_model: Any, engine: Any, prompts: Any
) -> None:
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(lab_base, dtype="float32")
    adapted = get_peft_model(base, LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False))
    adapted.peft_config["default"].base_model_name_or_path = str(lab_base)
    adapted.save_pretrained(tmp_path)
    found = resolve_model(str(tmp_path))
    assert found.adapter == str(tmp_path)
    assert found.path == str(lab_base)
    assert found.weights != resolve_model("lab").weights
    made = TransformersEngine(found, context=64)
    ids = torch.tensor([prompts[0]])
    with torch.no_grad():
        assert torch.allclose(made.model(ids).logits, adapted(ids).logits, atol=1e-4)
        assert not torch.allclose(made.model(ids).logits, lab_model[0](ids).logits, atol=1e-2)
    tensors = load_file(tmp_path / "adapter_model.safetensors")
    del tensors[min(tensors)]
    save_file(tensors, tmp_path / "adapter_model.safetensors", {"format": "pt"})
    with pytest.raises(ConfigError, match="Found missing adapter keys"):
        TransformersEngine(resolve_model(str(tmp_path)), context=64)
