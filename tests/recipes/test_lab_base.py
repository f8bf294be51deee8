"""The lab's shipped base model: small, loads with the stock classes, plays countdown as a base model should."""

import hashlib
import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer

from offleash.eval.tasks.countdown import SPLITS, Countdown
from offleash.recipes.lab.make_base import BASE, build_model, build_tokenizer, collate, encode_task, evaluate, pretrain

README = BASE.parent / "README.md"


@pytest.fixture(scope="module")
def tokenizer() -> AutoTokenizer:
    return AutoTokenizer.from_pretrained(BASE)


@pytest.fixture(scope="module")
def model() -> AutoModelForCausalLM:
    return AutoModelForCausalLM.from_pretrained(BASE)


def test_the_folder_is_complete_and_small() -> None:
    sizes = {path.name: path.stat().st_size for path in BASE.iterdir()}
    assert set(sizes) == {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assert sum(sizes.values()) < 2_000_000


def test_the_readme_names_the_weights_that_are_shipped() -> None:
    assert hashlib.sha256((BASE / "model.safetensors").read_bytes()).hexdigest() in README.read_text()


def test_weights_are_stored_in_half_and_load_as_float32(model: AutoModelForCausalLM) -> None:
    with safe_open(BASE / "model.safetensors", framework="pt") as weights:
        assert {weights.get_tensor(name).dtype for name in weights.keys()} == {torch.float16}  # noqa: SIM118
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert model.lm_head.weight is model.model.embed_tokens.weight


def test_generation_config_brings_no_sampling_parameters() -> None:
    settings = json.loads((BASE / "generation_config.json").read_text())
    assert set(settings) == {"eos_token_id", "pad_token_id", "transformers_version"}


def test_every_character_round_trips_without_added_tokens_or_spaces(tokenizer: AutoTokenizer) -> None:
    for text in ("3 7 25 = 96:", "(3 + 7)*25", "0123456789+-*()=: ", "  1  - 2 "):
        ids = tokenizer(text)["input_ids"]
        assert len(ids) == len(text)
        assert tokenizer.decode(ids, skip_special_tokens=True) == text
        assert (
            tokenizer.decode([*ids, tokenizer.eos_token_id, tokenizer.pad_token_id], skip_special_tokens=True) == text
        )
    assert tokenizer("3a")["input_ids"][1] == tokenizer.unk_token_id


@pytest.mark.parametrize("split", SPLITS)
def test_no_prompt_or_answer_has_an_unknown_character(split: str, tokenizer: AutoTokenizer) -> None:
    task = Countdown(split=split, n=300)
    texts = [str(p.prompt) for p in task.problems] + [a for p in task.problems for a in task.correct_answers(p)]
    assert tokenizer.unk_token_id not in {token for ids in tokenizer(texts)["input_ids"] for token in ids}


def test_the_shipped_tokenizer_is_the_one_the_script_builds(tokenizer: AutoTokenizer, tmp_path: Path) -> None:
    build_tokenizer().save_pretrained(tmp_path)
    assert (tmp_path / "tokenizer.json").read_text() == (BASE / "tokenizer.json").read_text()


def test_base_solves_a_third_at_once_and_nearly_all_in_64_draws(
    model: AutoModelForCausalLM, tokenizer: AutoTokenizer
) -> None:
    """Room above pass@1 for training to gain, and support wide enough for it to lose."""
    result = evaluate(model, tokenizer, Countdown(split="probe", n=32), draws=64, seed=0)
    assert 0.25 < result["pass@1"] < 0.5
    assert result["pass@64"] > 0.9
    assert result["share of correct answers seen"] > 0.8
    assert result["no-answer rate"] < 0.03


def test_loss_is_on_the_answer_and_its_end_only() -> None:
    tokenizer = build_tokenizer()
    inputs, labels = collate([([5, 6, 7, 8, 1], 3), ([5, 6, 1], 2)], pad=tokenizer.pad_token_id)
    assert inputs.tolist() == [[5, 6, 7, 8, 1], [5, 6, 1, 0, 0]]
    assert labels.tolist() == [[-100, -100, -100, 8, 1], [-100, -100, 1, -100, -100]]


def test_pretraining_twice_with_one_seed_gives_the_same_weights() -> None:
    assert torch.equal(pretrained_weights(0), pretrained_weights(0))
    assert not torch.equal(pretrained_weights(0), pretrained_weights(1))


def pretrained_weights(seed: int) -> torch.Tensor:
    torch.manual_seed(0)
    tokenizer = build_tokenizer()
    model = build_model(tokenizer)
    problems = encode_task(Countdown(split="train", n=64, strict=True), tokenizer)
    pretrain(model, problems, steps=3, batch=8, peak_lr=2e-3, seed=seed)
    return torch.cat([parameter.flatten() for parameter in model.parameters()])
