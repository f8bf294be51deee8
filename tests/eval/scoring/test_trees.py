"""Completions evaluated as trees against each of them on its own."""

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

from offleash.eval.errors import ConfigError
from offleash.eval.scoring.trees import completion_logprobs

SIZES = {
    "vocab_size": 23,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "initializer_range": 0.5,
}
PROMPTS = [[3, 1, 4], [1], [5, 9, 2, 6, 5, 3]]
ENDS = [7, 8]


@pytest.fixture(scope="module")
def llama():
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**SIZES)).double().eval()


@pytest.fixture(scope="module")
def completions():
    """Of three letters, so that many prefixes are shared; one is empty, one a prefix of another, one occurs twice."""
    rng = np.random.default_rng(0)
    drawn = [(int(rng.integers(3)), rng.integers(3, 6, rng.integers(1, 9)).tolist()) for _ in range(60)]
    return [*drawn, (0, []), (1, [3, 4]), (1, [3, 4, 5]), (1, [3, 4])]


def naive(model, prompt, ids, temperature):
    """One completion at a time, in double precision."""
    with torch.no_grad():
        logits = model(torch.tensor([prompt + ids])).logits[0].double() / temperature
    logp = torch.log_softmax(logits, -1)[len(prompt) - 1 :]
    tokens = [float(logp[place, token]) for place, token in enumerate(ids)]
    return [*tokens, float(torch.logsumexp(logp[len(ids), ENDS], 0))]


@pytest.mark.parametrize(("tree_tokens", "batch_tokens"), [(0, 200), (5, 1), (20, 120), (256, 16384)])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_every_token_has_the_probability_that_it_has_alone(llama, completions, tree_tokens, batch_tokens, attention):
    llama.set_attn_implementation(attention)
    for temperature in (1.0, 0.6):
        found = completion_logprobs(
            llama,
            PROMPTS,
            completions,
            end_token_ids=ENDS,
            temperature=temperature,
            tree_tokens=tree_tokens,
            batch_tokens=batch_tokens,
        )
        assert [len(one) for one in found] == [len(ids) + 1 for _, ids in completions]
        for (prompt, ids), logprobs in zip(completions, found, strict=True):
            np.testing.assert_allclose(logprobs, naive(llama, PROMPTS[prompt], ids, temperature), atol=1e-5)
    llama.set_attn_implementation("sdpa")


def test_shared_tokens_are_evaluated_once(llama, completions, monkeypatch, capsys):
    rows = []
    decoder = llama.get_decoder()
    forward = decoder.forward
    monkeypatch.setattr(decoder, "forward", lambda **given: rows.append(given["input_ids"]) or forward(**given))
    completion_logprobs(llama, PROMPTS, completions, end_token_ids=ENDS)
    evaluated = rows[-1]  # after the checks, one batch holds all
    prefixes = {(prompt, tuple(ids[:n])) for prompt, ids in completions for n in range(1, len(ids) + 1)}
    per_prompt = [len(PROMPTS[p]) + sum(prompt == p for prompt, _ in prefixes) for p in range(3)]
    assert evaluated.shape == (3, max(per_prompt))
    assert capsys.readouterr().out == ""


def test_a_model_with_a_sliding_window_gets_one_row_per_completion_and_a_line_says_so(completions, capsys):
    """Its window counts positions in the row; in a tree the prompt would be out of sight."""
    torch.manual_seed(0)
    model = MistralForCausalLM(MistralConfig(**SIZES, sliding_window=4)).double().eval()
    found = completion_logprobs(model, PROMPTS, completions, end_token_ids=ENDS)
    assert "MistralForCausalLM does not take a tree of completions" in capsys.readouterr().out
    for (prompt, ids), logprobs in zip(completions, found, strict=True):
        np.testing.assert_allclose(logprobs, naive(model, PROMPTS[prompt], ids, 1.0), atol=1e-5)


def test_the_mode_and_the_random_state_are_left_as_they_were(llama, completions):
    llama.train()
    before = torch.get_rng_state()
    completion_logprobs(llama, PROMPTS, completions, end_token_ids=ENDS)
    assert llama.training
    assert torch.equal(before, torch.get_rng_state())
    llama.eval()


@pytest.mark.parametrize(("prompts", "temperature", "message"), [([[]], 1.0, "prompt"), ([[1]], 0.0, "temperature")])
def test_what_cannot_be_scored_is_an_error(llama, prompts, temperature, message):
    with pytest.raises(ConfigError, match=message):
        completion_logprobs(llama, prompts, [(0, [2])], end_token_ids=ENDS, temperature=temperature)


def test_nothing_to_score_is_nothing(llama):
    assert completion_logprobs(llama, PROMPTS, [], end_token_ids=ENDS) == []
