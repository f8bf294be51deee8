import numpy as np
import pytest
import torch
from transformers import CohereConfig, CohereForCausalLM, Gemma2Config, Gemma2ForCausalLM, LlamaConfig, LlamaForCausalLM

import offleash.eval.scoring.teacher_forcing as scoring
from offleash.eval.errors import ConfigError
from offleash.eval.scoring.teacher_forcing import score

SIZES = {
    "vocab_size": 211,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 16,
}


@pytest.fixture(scope="module")
def llama():
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**SIZES, initializer_range=0.5))
    return model.eval()


@pytest.fixture(scope="module")
def sequences():
    rng = np.random.default_rng(0)
    lengths = [(3, 5), (1, 40), (17, 1), (5, 0), (2, 300)]
    prompts = [rng.integers(0, 211, p).tolist() for p, _ in lengths]
    completions = [rng.integers(0, 211, c).tolist() for _, c in lengths]
    return prompts, completions


def naive(model, prompt, completion, temperature):
    """One sequence at a time, all logits at once, in double precision."""
    with torch.no_grad():
        logits = model(torch.tensor([prompt + completion])).logits[0].double() / temperature
    logp = torch.log_softmax(logits, -1)[len(prompt) - 1 : -1]
    picked = logp[torch.arange(len(completion)), torch.tensor(completion, dtype=torch.long)]
    entropy = -(logp.exp() * logp).sum(-1)
    return float(picked.sum()), float(entropy.mean()) if completion else float("nan")


@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize(("batch_tokens", "chunk_bytes"), [(1, 1), (700, 211 * 4 * 7), (16384, 1 << 25)])
def test_it_equals_the_naive_computation(llama, sequences, temperature, batch_tokens, chunk_bytes, monkeypatch):
    monkeypatch.setattr(scoring, "CHUNK_BYTES", chunk_bytes)
    prompts, completions = sequences
    scores = score(llama, prompts, completions, temperature=temperature, batch_tokens=batch_tokens)
    wanted = [naive(llama, p, c, temperature) for p, c in zip(prompts, completions, strict=True)]
    lengths = np.maximum(scores.tokens_s, 1)
    np.testing.assert_allclose(scores.logprob_s / lengths, [w[0] for w in wanted] / lengths, atol=1e-5)
    np.testing.assert_allclose(scores.entropy_s, [w[1] for w in wanted], atol=1e-5)
    assert scores.tokens_s.tolist() == [len(c) for c in completions]


def test_perplexity_is_the_exponential_of_the_mean_negative_logprob_and_undefined_for_nothing(llama, sequences):
    scores = score(llama, *sequences)
    np.testing.assert_allclose(scores.nll_s[0], -scores.logprob_s[0] / 5)
    assert np.isnan(scores.nll_s[3])
    assert np.isnan(scores.entropy_s[3])


def test_a_uniform_model_has_the_entropy_of_its_vocabulary():
    model = LlamaForCausalLM(LlamaConfig(**SIZES))
    torch.nn.init.zeros_(model.lm_head.weight)
    scores = score(model, [[1, 2]], [[3, 4, 5]])
    assert scores.entropy_s[0] == pytest.approx(np.log(211), abs=5e-6)
    assert scores.logprob_s[0] == pytest.approx(-3 * np.log(211), abs=1e-5)
    assert np.exp(scores.nll_s[0]) == pytest.approx(211, rel=1e-5)


def test_soft_capped_logits_are_capped():
    torch.manual_seed(0)
    config = Gemma2Config(**SIZES, final_logit_softcapping=1.5, initializer_range=0.5)
    model = Gemma2ForCausalLM(config).eval()
    scores = score(model, [[1, 2, 3]], [[4, 5, 6, 7]])
    logprob, entropy = naive(model, [1, 2, 3], [4, 5, 6, 7], 1.0)
    assert scores.logprob_s[0] == pytest.approx(logprob, abs=1e-4)
    assert scores.entropy_s[0] == pytest.approx(entropy, abs=1e-5)


def test_a_model_that_scales_its_logits_is_refused_rather_than_scored_wrongly():
    torch.manual_seed(0)
    sizes = {key: value for key, value in SIZES.items() if key != "head_dim"}
    model = CohereForCausalLM(CohereConfig(**sizes, logit_scale=0.0625, initializer_range=0.5, pad_token_id=0))
    with pytest.raises(ConfigError, match="CohereForCausalLM"):
        score(model, [[1, 2, 3]], [[4, 5]])


def test_the_mode_of_the_model_is_left_as_it_was(llama):
    llama.train()
    score(llama, [[1]], [[2]])
    assert llama.training
    llama.eval()


@pytest.mark.parametrize(
    ("prompts", "completions", "temperature", "message"),
    [
        ([[1]], [[2], [3]], 1.0, "1 prompts but 2 completions"),
        ([[]], [[2]], 1.0, "prompt"),
        ([[1]], [[2]], 0.0, r"temperature .*0\.0"),
    ],
)
def test_what_cannot_be_scored_is_an_error(llama, prompts, completions, temperature, message):
    with pytest.raises(ConfigError, match=message):
        score(llama, prompts, completions, temperature=temperature)


def test_nothing_to_score_is_nothing(llama):
    assert score(llama, [], []).logprob_s.shape == (0,)
