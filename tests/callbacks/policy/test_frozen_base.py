"""The base stays what it was: a bit that moves stops the run, and an adapter that is not zero at first is refused."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from offleash.callbacks import SupportCallback
from offleash.callbacks.policy.frozen_base import check_loaded_everywhere, frozen_base
from offleash.callbacks.policy.pool import as_trained
from offleash.callbacks.policy.trl_seam import scoring, token_logps
from offleash.callbacks.policy.weight_hash import hash_weights, moved_weights
from offleash.eval.errors import ConfigError, EngineError
from offleash.eval.tasks import load_task


def flip_last_bit(weight: torch.Tensor) -> None:
    with torch.no_grad():
        weight.view(torch.int32)[-1, -1] ^= 1


def adapt(trainer: Any, **settings: Any) -> Any:
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=2, target_modules=["q_proj"], **settings)
    trainer.model = trainer.model_wrapped = peft.get_peft_model(trainer.model, config)
    return trainer


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "uint8", "float8_e4m3fn"])
def test_a_hash_sees_every_bit_and_its_place(dtype: str) -> None:
    raw = torch.arange(8 * 1001, dtype=torch.uint8).view(-1)[3:-2] if dtype == "uint8" else torch.randn(1001)
    weight = raw.to(getattr(torch, dtype))
    before = hash_weights([("a", weight)])
    assert hash_weights([("a", weight.clone())]) == before
    swapped = weight.view(torch.uint8).clone()
    first, last = (swapped != swapped[0]).nonzero()[0], len(swapped) - 1
    for place in (0, int(first), last):
        other = weight.view(torch.uint8).clone()
        other[place] ^= 1
        assert moved_weights(before, hash_weights([("a", other)])) == ["a"]
    swapped[[0, int(first)]] = swapped[[int(first), 0]]
    assert moved_weights(before, hash_weights([("a", swapped)])) == ["a"]
    assert moved_weights(before, {}) == ["a"]
    assert hash_weights([("nothing here", torch.zeros(0))]) == {}


def test_one_bit_of_the_reference_stops_the_run_at_the_next_measurement(make_trainer: Any) -> None:
    trainer = make_trainer(beta=0.1)
    monitor = SupportCallback(trainer, load_task("countdown", split="probe", n=2), k=2, every=1)
    monitor.measure(0)
    monitor.measure(1)
    flip_last_bit(trainer.ref_model.model.layers[1].mlp.up_proj.weight)
    said = "step 2: model.layers.1.mlp.up_proj.weight and 0 more"
    with pytest.raises(EngineError, match=re.escape(said)):
        monitor.measure(2)


def test_the_base_of_an_adapter_is_everything_that_is_frozen(make_trainer: Any) -> None:
    trainer = adapt(make_trainer(beta=0.0))
    base = frozen_base(trainer)
    base.check_unchanged(0)
    layer = trainer.model.base_model.model.model.layers[0].self_attn.q_proj
    flip_last_bit(layer.lora_B["default"].weight)  # what is trained may move
    base.check_unchanged(1)
    flip_last_bit(layer.base_layer.weight)
    with pytest.raises(EngineError, match=r"q_proj\.base_layer\.weight and 0 more"):
        base.check_unchanged(2)


@pytest.mark.long
def test_with_no_base_in_memory_there_is_nothing_to_check(make_trainer: Any) -> None:
    frozen_base(make_trainer(beta=0.0)).check_unchanged(0)


@pytest.mark.long
@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({}, None),
        ({"init_lora_weights": False}, "does not start as the base"),
        ({"init_lora_weights": "pissa"}, "does not start as the base"),
        ({"bias": "all"}, "bias"),
    ],
    ids=["fresh", "trained", "pissa", "bias"],
)
def test_an_adapter_that_is_not_zero_at_the_start_is_refused(
    make_trainer: Any, settings: dict[str, Any], named: str | None
) -> None:
    base = frozen_base(adapt(make_trainer(beta=0.0), **settings))
    if named is None:
        base.check_is_policy()
        return
    with pytest.raises(ConfigError, match=named):
        base.check_is_policy()


@pytest.mark.long
def test_scores_have_no_dropout_and_do_not_depend_on_gradient_checkpointing(make_trainer: Any, tmp_path: Path) -> None:
    found = {}
    for checkpointing in (True, False):
        trainer = make_trainer(str(checkpointing), gradient_checkpointing=checkpointing, temperature=1.0)
        adapt(trainer, lora_dropout=0.9, init_lora_weights=False)
        with torch.no_grad():
            for name, weight in trainer.model.named_parameters():
                if "lora_" in name:
                    weight.fill_(0.05)
        trainer.model.train()
        ids = torch.arange(3, 19)[None]
        rows = ids, torch.ones_like(ids), 8
        with scoring(trainer):
            first, again = (token_logps(trainer, trainer.model, *rows)[0] for _ in range(2))
        assert trainer.model.training
        assert torch.equal(first, again)
        assert not first.requires_grad
        with torch.no_grad():
            assert not torch.equal(token_logps(trainer, trainer.model, *rows)[0], first)  # dropout there is
        found[checkpointing] = first
    assert torch.equal(found[True], found[False])


@pytest.mark.long
def test_a_base_that_fsdp_loads_on_one_process_only_is_refused(
    make_trainer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = make_trainer(beta=0.0)
    plugin = SimpleNamespace(fsdp_version=2, cpu_ram_efficient_loading=True)
    monkeypatch.setattr(trainer, "is_fsdp_enabled", True)
    monkeypatch.setattr(trainer.accelerator.state, "fsdp_plugin", plugin, raising=False)
    with pytest.raises(ConfigError, match="fsdp_cpu_ram_efficient_loading: false"):
        frozen_base(trainer)._module()
    plugin.cpu_ram_efficient_loading = False
    check_loaded_everywhere(trainer)


@pytest.mark.long
def test_sampling_settings_that_trl_does_not_show_are_refused(make_trainer: Any) -> None:
    trainer = make_trainer(generation_kwargs={"top_p": 0.9, "cache_implementation": None})
    with pytest.raises(ConfigError, match="generation_kwargs has top_p"):
        as_trained(trainer)
