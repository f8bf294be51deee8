"""The reweighted base fitted to samples: weights and gradient are those of the formula."""

import math

import numpy as np
import pytest
import torch

from offleash.eval import Sampling, sample_pool
from offleash.recipes.lab.fitted import Lab, Weighed

pytestmark = pytest.mark.long

BETA = 0.5


@pytest.fixture(scope="module")
def lab():
    return Lab("lab_colouring")


@pytest.fixture(scope="module")
def samples(lab, tmp_path_factory):
    pool = lab.sampled(tmp_path_factory.mktemp("fitted") / "pool", 8, 16)
    return Weighed(pool, BETA)


def test_weights_are_those_of_the_reweighting_and_have_a_mean_of_one_on_each_problem(samples):
    for prompt in set(samples.prompts):
        of = [i for i, other in enumerate(samples.prompts) if other == prompt]
        weights, correct = samples.weight_b[of], samples.correct_b[of]
        assert weights.mean() == pytest.approx(1)
        if 0 < correct.mean() < 1:
            assert weights[correct == 1].mean() / weights[correct == 0].mean() == pytest.approx(math.exp(1 / BETA))


def test_at_the_base_only_what_the_weights_ask_for_moves_the_policy(lab, samples):
    rows = np.arange(64)
    found = torch.autograd.grad(lab.loss(samples, rows), lab.policy.lm_head.weight)[0]
    ids_bt, there_bt, drawn_bt = lab._batch(samples, rows)
    logps_btv = lab.policy(input_ids=ids_bt, attention_mask=there_bt).logits[:, :-1].log_softmax(-1)
    logps_b = (logps_btv.gather(-1, ids_bt[:, 1:, None])[..., 0] * drawn_bt[:, 1:]).sum(1)
    excess_b = torch.tensor(samples.weight_b[rows] - 1, dtype=torch.float32)
    asked = torch.autograd.grad(-(excess_b * logps_b).mean(), lab.policy.lm_head.weight)[0]
    assert asked.abs().max() > 1e-3
    torch.testing.assert_close(found, asked, atol=1e-5, rtol=1e-3)


def test_what_is_fitted_has_the_log_probability_of_what_the_base_drew(lab, tmp_path):
    """Prompts, ends and padding are where sampling had them."""
    task = lab._task("train", 4)
    pool = sample_pool("lab_colouring", task, tmp_path / "pool", k=8, sampling=Sampling(max_new_tokens=lab.length))
    samples = Weighed(pool, BETA)
    ids_bt, there_bt, drawn_bt = lab._batch(samples, np.arange(32))
    with torch.no_grad():
        logps_btv = lab.base(input_ids=ids_bt, attention_mask=there_bt).logits[:, :-1].log_softmax(-1)
    found_b = (logps_btv.gather(-1, ids_bt[:, 1:, None])[..., 0] * drawn_bt[:, 1:]).sum(1)
    assert found_b.tolist() == pytest.approx(pool.read(["logprob"])["logprob"].to_pylist(), abs=1e-3)
