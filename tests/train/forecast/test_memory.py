"""Memory by part: against the ZeRO paper's worked example, and against what real tensors of the lab's model take."""

from dataclasses import replace

import pytest
import torch
from transformers import AutoConfig

from offleash.train.forecast.hardware import GIB
from offleash.train.forecast.memory import Layout, cache_bytes, generating, states, training, vllm_sequences
from offleash.train.forecast.model_size import ModelSize, measure_model

PLAIN = Layout(
    gpus=1, sharding="none", half=False, weight_bytes=4, moments_bytes=8, reference=False, base_copy=False,
    checkpointing=False, micro_batch=1, tokens=1024, rollouts=0, monitor_tokens=0, vllm_share=0, vllm_gpus=1,
    sleeps=False,
)  # fmt: skip
BIG = ModelSize(7_500_000_000, 7_500_000_000, 32, 4096, 4096, 4096, 11008, 32000, None)


@pytest.fixture(scope="module")
def lab_size(lab_base):
    return measure_model(AutoConfig.from_pretrained(lab_base))


@pytest.mark.parametrize(("sharding", "gigabytes", "more"), [("zero1", 31.4, 0), ("zero2", 16.6, 2), ("zero3", 1.9, 2)])
def test_states_are_those_of_the_zero_papers_figure_1_with_float32_gradients(sharding, gigabytes, more):
    parts = states(BIG, replace(PLAIN, gpus=64, sharding=sharding, half=True))
    held = sum(parts[part] for part in ("weights", "gradients", "optimizer")) - more * BIG.trained / 64
    assert held / 1e9 == pytest.approx(gigabytes, abs=0.05)
    assert sum(states(BIG, replace(PLAIN, sharding="zero1", half=True)).values()) == 16 * BIG.parameters


def test_a_reference_costs_weights_again_and_an_adapter_needs_none():
    assert states(BIG, replace(PLAIN, reference=True))["reference model"] == 4 * BIG.parameters
    adapted = BIG._replace(trained=10_000_000, adapter=True)
    parts = states(adapted, replace(PLAIN, weight_bytes=2, half=True, reference=True))
    assert parts["reference model"] == 0
    assert parts["weights"] == 2 * BIG.parameters + 4 * adapted.trained
    assert parts["gradients"] + parts["optimizer"] == 12 * adapted.trained


def test_a_copy_of_the_base_costs_as_much_as_a_reference():
    for sharding, bytes_ in (("none", 4), ("zero2", 2), ("zero3", 0.25)):
        parts = states(BIG, replace(PLAIN, gpus=8, sharding=sharding, half=True, reference=True, base_copy=True))
        assert parts["copy of the base"] == parts["reference model"] == bytes_ * BIG.parameters
    adapted = BIG._replace(trained=10_000_000, adapter=True)
    assert states(adapted, replace(PLAIN, base_copy=True))["copy of the base"] == 0


def test_fsdp_trains_float32_weights_whatever_they_were_loaded_in():
    layout = replace(PLAIN, gpus=8, sharding="fsdp", half=True, weight_bytes=2)
    parts = states(BIG, layout)
    held = sum(parts[part] for part in ("weights", "gradients", "optimizer"))
    assert held == 16 * BIG.parameters / 8
    assert states(BIG, replace(layout, half=False))["weights"] == 2 * BIG.parameters / 8
    adapted = states(BIG._replace(trained=10_000_000, adapter=True), layout)
    assert adapted["weights"] == (2 * BIG.parameters + 4 * 10_000_000) / 8


def test_fsdp_gathers_a_frozen_model_whole_and_the_policy_by_layers():
    layout = replace(PLAIN, gpus=8, sharding="fsdp", half=True)
    assert states(BIG, layout)["gathered weights"] < 0.2 * BIG.parameters * 2
    for frozen in ({"reference": True}, {"base_copy": True}):
        assert states(BIG, replace(layout, **frozen))["gathered weights"] == BIG.parameters * 2
    assert states(BIG, replace(layout, half=False))["gathered weights"] == 2 * states(BIG, layout)["gathered weights"]


def test_ddp_keeps_gradients_twice_and_one_gpu_once():
    assert states(BIG, replace(PLAIN, gpus=2))["gradient buckets"] == 4 * BIG.parameters
    for alone in ({"gpus": 1}, {"gpus": 2, "sharding": "zero2"}, {"gpus": 2, "sharding": "fsdp"}):
        assert states(BIG, replace(PLAIN, **alone))["gradient buckets"] == 0


def test_states_are_what_a_real_model_and_its_optimizer_hold(lab_base, lab_size):
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(lab_base, dtype="float32")
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 4, dtype=torch.long)).logits.sum().backward()
    optimizer.step()
    held = [t for p in model.parameters() for t in (p, p.grad, *optimizer.state[p].values()) if t.dim()]
    assert sum(t.nbytes for t in held) == sum(states(lab_size, PLAIN).values())


def test_the_cache_is_as_large_as_the_models_own(lab_model, lab_size):
    model, _ = lab_model
    with torch.no_grad():
        cache = model(torch.ones(3, 7, dtype=torch.long), use_cache=True).past_key_values
    held = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
    assert held == 3 * 7 * cache_bytes(lab_size, 4)


def test_activations_are_within_two_of_what_autograd_keeps(lab_model, lab_size):
    model, _ = lab_model
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = (storage.nbytes(), tensor)  # held, so that its address is not used again
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(torch.ones(16, 64, dtype=torch.long), use_cache=False)
    measured = sum(size for size, _ in kept.values())
    estimated = training(lab_size, replace(PLAIN, micro_batch=16, tokens=64))["activations"]
    assert 0.5 < estimated / measured < 2


def test_checkpointing_keeps_one_vector_per_layer_and_two_layers_at_work():
    once, again = (training(BIG, replace(PLAIN, half=True, checkpointing=on))["activations"] for on in (False, True))
    layer = once / BIG.layers
    assert again == pytest.approx(1024 * 32 * 4096 * 2 + 2 * layer)


def test_vllm_holds_what_its_share_leaves_beside_the_weights():
    memory = 80 * GIB
    layout = replace(PLAIN, vllm_share=0.5, tokens=1000)
    left = 40 * GIB - 1.5 * GIB - 15e9
    assert vllm_sequences(BIG, layout, memory) == pytest.approx(left / (2 * 32 * 4096 * 2 * 1000))
    assert vllm_sequences(BIG, replace(layout, vllm_share=0.15), memory) < 0
    assert generating(BIG, layout, memory) == 40 * GIB
    assert generating(BIG, replace(PLAIN, rollouts=8), memory) == 8 * 1024 * cache_bytes(BIG, 4)
    both = replace(PLAIN, rollouts=8, monitor_tokens=9 * 1024)
    assert generating(BIG, both, memory) == 9 * 1024 * cache_bytes(BIG, 4)


def test_without_vllm_zero3_gathers_all_weights_to_generate():
    layout = replace(PLAIN, gpus=8, sharding="zero3", half=True, weight_bytes=2, rollouts=1)
    gathered = states(BIG, layout)["gathered weights"]
    assert generating(BIG, layout, 0) + gathered == 1024 * cache_bytes(BIG, 2) + 2 * BIG.parameters
