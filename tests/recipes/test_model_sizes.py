"""Sizes counted on the meta device: against published numbers, a closed form and real models."""

import pytest
from transformers import AutoConfig

from offleash.train.forecast.model_size import AdapterSize, measure_model


def closed_form(c):
    """Llama, Qwen2 and Qwen3: embeddings, and per layer attention, its biases or norms, three matrices, two norms."""
    width = getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads
    q, kv = c.num_attention_heads * width, c.num_key_value_heads * width
    layer = 2 * c.hidden_size * (q + kv) + 3 * c.hidden_size * c.intermediate_size + 2 * c.hidden_size
    layer += {"qwen2": q + 2 * kv, "qwen3": 2 * width, "llama": 0}[c.model_type]
    embeddings = c.vocab_size * c.hidden_size * (1 if c.tie_word_embeddings else 2)
    return embeddings + c.num_hidden_layers * layer + c.hidden_size


def test_counts_are_the_published_ones_and_follow_from_the_config(published):
    for name, (config, parameters) in published.items():
        assert measure_model(config).parameters == parameters, name
        if hasattr(config, "vocab_size") and config.model_type in ("qwen2", "qwen3"):
            assert closed_form(config) == parameters, name


def test_the_labs_size_is_that_of_the_real_model(lab_base, lab_model):
    config, model = AutoConfig.from_pretrained(lab_base), lab_model[0]
    size = measure_model(config)
    assert size.parameters == size.trained == model.num_parameters() == closed_form(config)
    assert (size.hidden, size.layers, size.key_value, size.context) == (96, 4, 96, 128)


@pytest.mark.parametrize(
    ("targets", "per_layer"),
    [
        ("all-linear", 2 * (896 + 896) + 2 * (896 + 128) + 3 * (896 + 4864)),
        (("q_proj", "v_proj"), (896 + 896) + (896 + 128)),
        (("self_attn.q_proj", "nothing"), 896 + 896),
        (r".*\.(q|v)_proj", (896 + 896) + (896 + 128)),
        ("q_proj", 0),  # a text is a pattern of the whole name
    ],
)
def test_an_adapter_has_rank_times_in_plus_out_numbers_for_each_matrix(published, targets, per_layer):
    size = measure_model(published["Qwen/Qwen2.5-0.5B-Instruct"][0], AdapterSize(32, targets))
    assert size.trained == 32 * 24 * per_layer
    assert size.adapter
    assert size.parameters == 494_032_768


def test_an_adapters_size_is_that_of_a_real_one(lab_base):
    peft = pytest.importorskip("peft")
    from transformers import AutoModelForCausalLM

    for targets in ("all-linear", ["q_proj", "down_proj"]):
        adapted = peft.get_peft_model(
            AutoModelForCausalLM.from_pretrained(lab_base), peft.LoraConfig(r=4, target_modules=targets)
        )
        trained = sum(p.numel() for p in adapted.parameters() if p.requires_grad)
        assert measure_model(AutoConfig.from_pretrained(lab_base), AdapterSize(4, targets)).trained == trained
