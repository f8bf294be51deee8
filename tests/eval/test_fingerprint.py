"""A fingerprint changes when what it stands for changes, and never otherwise."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from offleash.eval.errors import ConfigError
from offleash.eval.fingerprint import (
    canonical_json,
    problems_fingerprint,
    template_fingerprint,
    weights_fingerprint,
)
from offleash.eval.problem import Problem

PROBLEM = Problem("a", "1 + 1 =", "2", {"level": 1})
TENSORS = {name: np.arange(6, dtype=np.float32).reshape(2, 3) + i for i, name in enumerate(("w", "b", "norm"))}


def test_canonical_json_is_one_text_per_value() -> None:
    assert canonical_json({"b": 1, "a": ("é", None)}) == canonical_json({"a": ["é", None], "b": 1})
    with pytest.raises(ValueError, match="JSON"):
        canonical_json(float("nan"))


def test_problems_are_told_apart_by_id_prompt_gold_and_order_alone() -> None:
    other = Problem("b", [{"role": "user", "content": "hi \ud800"}], "")
    whole = problems_fingerprint([PROBLEM, other])
    assert whole == problems_fingerprint([replace(PROBLEM, meta={}), other])
    different = [
        [other, PROBLEM],
        [PROBLEM],
        [replace(PROBLEM, id="c"), other],
        [replace(PROBLEM, prompt="1+1="), other],
        [replace(PROBLEM, gold="3"), other],
        [replace(PROBLEM, id="a1", prompt=" + 1 ="), other],
    ]
    assert len({whole, *map(problems_fingerprint, different)}) == len(different) + 1


def test_a_prompt_that_json_cannot_hold_is_named() -> None:
    with pytest.raises(ConfigError, match=r"problem 'a'.*data URLs"):
        problems_fingerprint([replace(PROBLEM, prompt=[{"role": "user", "content": object()}])])


def tokenizer(words: tuple[str, ...] = ("<unk>", "</s>", "a", "b"), **kwargs: Any) -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    settings = {"unk_token": "<unk>", "eos_token": "</s>", "chat_template": "{{ messages[0]['content'] }}", **kwargs}
    return PreTrainedTokenizerFast(tokenizer_object=backend, **settings)


def test_the_template_is_vocabulary_chat_template_and_special_tokens() -> None:
    different = [
        tokenizer(),
        tokenizer(words=("<unk>", "</s>", "b", "a")),
        tokenizer(chat_template="{{ messages[0]['content'] }} "),
        tokenizer(chat_template=None),
        tokenizer(eos_token="b"),
    ]
    assert len(set(map(template_fingerprint, different))) == len(different)
    assert template_fingerprint(tokenizer()) == template_fingerprint(different[0])


def test_using_or_saving_a_tokenizer_does_not_change_its_template(tmp_path: Path) -> None:
    fresh = tokenizer()
    before = template_fingerprint(fresh)
    fresh.pad_token = fresh.eos_token
    fresh.padding_side = "left"
    fresh(["a b a", "b"], padding=True, truncation=True, max_length=2)
    assert template_fingerprint(fresh) == before
    fresh.save_pretrained(tmp_path)
    assert template_fingerprint(AutoTokenizer.from_pretrained(tmp_path)) == before


def test_a_processor_and_a_tokenizer_without_a_fast_backend_have_a_template() -> None:
    class Slow:
        def __init__(self, vocabulary: dict[str, int]) -> None:
            self.vocabulary = vocabulary
            self.special_tokens_map = {"eos_token": "</s>"}

        def get_vocab(self) -> dict[str, int]:
            return self.vocabulary

    class Processor:
        def __init__(self, chat_template: str | None) -> None:
            self.tokenizer = Slow({"a": 0})
            self.chat_template = chat_template

    assert template_fingerprint(Slow({"a": 0, "b": 1})) == template_fingerprint(Slow({"b": 1, "a": 0}))
    assert template_fingerprint(Slow({"a": 0})) != template_fingerprint(Slow({"a": 1}))
    assert template_fingerprint(Processor(None)) == template_fingerprint(Slow({"a": 0}))
    assert template_fingerprint(Processor("x")) != template_fingerprint(Processor(None))


def model(folder: Path, tensors: dict[str, np.ndarray], name: str = "model.safetensors", **metadata: str) -> Path:
    folder.mkdir(exist_ok=True)
    save_file(tensors, folder / name, metadata or None)
    return folder


def test_weights_are_the_same_however_they_are_sharded_named_or_surrounded(tmp_path: Path) -> None:
    whole = model(tmp_path / "whole", TENSORS)
    before = weights_fingerprint(whole)
    sharded = model(tmp_path / "sharded", {"w": TENSORS["w"]}, "model-00001-of-00002.safetensors")
    model(sharded, {"b": TENSORS["b"], "norm": TENSORS["norm"]}, "model-00002-of-00002.safetensors")
    assert weights_fingerprint(sharded) == before
    assert weights_fingerprint(model(tmp_path / "described", TENSORS, format="pt")) == before
    for name in ("config.json", "tokenizer.json", "optimizer.bin", "training_args.bin", "model.safetensors.index.json"):
        (whole / name).write_text("{}")
    assert weights_fingerprint(str(whole)) == before


def test_any_change_of_a_weight_changes_the_weights(tmp_path: Path) -> None:
    one = TENSORS["w"].copy()
    one[1, 2] = np.nextafter(one[1, 2], np.float32(0))
    variants = [
        TENSORS,
        {**TENSORS, "w": one},
        {**TENSORS, "w": TENSORS["w"].reshape(3, 2)},
        {**TENSORS, "w": TENSORS["w"].view(np.int32)},
        {**TENSORS, "w": TENSORS["b"], "b": TENSORS["w"]},
        {"w": TENSORS["w"], "b": TENSORS["b"]},
        {**TENSORS, "extra": TENSORS["w"]},
    ]
    prints = [weights_fingerprint(model(tmp_path / str(i), tensors)) for i, tensors in enumerate(variants)]
    assert len(set(prints)) == len(variants)


def test_bin_files_are_hashed_whole_when_there_are_no_safetensors(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"weights")
    first = weights_fingerprint(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"weightt")
    assert weights_fingerprint(tmp_path) != first
    model(tmp_path, TENSORS)
    assert weights_fingerprint(tmp_path) == weights_fingerprint(model(tmp_path / "only", TENSORS))


def adapter(folder: Path, tensors: dict[str, np.ndarray], **config: Any) -> Path:
    model(folder, tensors, "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps({"r": 8, "lora_alpha": 16, **config}))
    return folder


def test_an_adapter_is_its_weights_and_its_scale_on_a_base(tmp_path: Path) -> None:
    base = model(tmp_path / "base", TENSORS)
    lora = adapter(tmp_path / "lora", {"A": TENSORS["w"]}, target_modules=["q", "v"], base_model_name_or_path="x")
    moved = adapter(tmp_path / "moved", {"A": TENSORS["w"]}, target_modules=["v", "q"], base_model_name_or_path="y")
    scaled = adapter(tmp_path / "scaled", {"A": TENSORS["w"]}, target_modules=["q", "v"], lora_alpha=32)
    trained = adapter(tmp_path / "trained", {"A": TENSORS["b"]}, target_modules=["q", "v"])
    assert weights_fingerprint(base, lora) == weights_fingerprint(base, moved)
    different = [(base,), (lora,), (base, lora), (base, scaled), (base, trained), (base, lora, trained)]
    assert len({weights_fingerprint(*folders) for folders in different}) == len(different)


def test_missing_or_cut_weights_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere"):
        weights_fingerprint(tmp_path / "nowhere")
    path = model(tmp_path, TENSORS) / "model.safetensors"
    whole = path.read_bytes()
    for header in (b"[1, 2]", b"5", b'{"a": {"x": 1}}', b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [0]}}'):
        path.write_bytes(len(header).to_bytes(8, "little") + header)
        with pytest.raises(ConfigError, match="safetensors"):
            weights_fingerprint(tmp_path)
    for length, message in [(0, "safetensors"), (20, "safetensors"), (len(whole) - 5, "5 bytes")]:
        path.write_bytes(whole[:length])
        with pytest.raises(ConfigError, match=message):
            weights_fingerprint(tmp_path)
