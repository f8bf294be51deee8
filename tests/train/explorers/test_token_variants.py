"""The variants that act on tokens, against values worked by hand."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from offleash.eval.errors import ConfigError
from offleash.train.explorers.loss.covariance import ClipCov, KlCov, token_covariance
from offleash.train.explorers.loss.entropy_advantage import EntropyAdvantage
from offleash.train.explorers.loss.sage import Sage, branch_guide, k3_change


@pytest.fixture
def trainer(stand_in_trainer: Any) -> Any:
    def make(**args: int) -> Any:
        settings = {"seed": 3, "gradient_accumulation_steps": 1, "steps_per_generation": 2, "num_iterations": 1, **args}
        accelerator = SimpleNamespace(process_index=0)
        return stand_in_trainer(settings, _step=0, accelerator=accelerator, epsilon_high=0.2, epsilon_low=0.2)

    return make


def test_covariance_is_that_of_the_unmasked_tokens(tokens) -> None:
    batch = tokens([[1.0, 1.0], [-1.0, -1.0]], [[-1.0, -3.0], [-2.0, -9.0]], mask=[[1.0, 1.0], [1.0, 0.0]])
    cov = token_covariance(batch)
    a, lp = torch.tensor([1.0, 1.0, -1.0]), torch.tensor([-1.0, -3.0, -2.0])
    expected = (a - a.mean()) * (lp - lp.mean())
    assert cov[batch.mask_bt.bool()].tolist() == pytest.approx(expected.tolist())
    assert cov[1, 1].isnan()


def test_the_mean_covariance_is_numpys(tokens) -> None:
    a, lp = torch.randn(3, 4), -torch.rand(3, 4)
    cov = token_covariance(tokens(a.tolist(), lp.tolist()))
    joint = torch.cov(torch.stack([a.flatten(), lp.flatten()]), correction=0)
    assert cov.mean().item() == pytest.approx(joint[0, 1].item(), abs=1e-6)


def test_entropy_raises_an_advantage_by_at_most_a_part_of_it(tokens) -> None:
    batch = tokens([[1.0, 1.0, -1.0, 0.0]], [[-1.0] * 4], entropies=[[0.5, 9.0, 9.0, 9.0]])
    assert EntropyAdvantage(alpha=0.4, kappa=2.0).token_advantages(batch).tolist()[0] == pytest.approx(
        [1.2, 1.5, -0.5, 0.0]
    )


def test_clip_cov_leaves_out_as_many_as_asked_and_only_from_the_band(tokens, trainer) -> None:
    a, lp = torch.randn(20, 10) * 2, -torch.rand(20, 10) * 4
    batch = tokens(a.tolist(), lp.tolist())
    explorer = ClipCov(ratio=0.02, low=1.0, high=5.0)
    explorer.attach(trainer())
    out = explorer.token_advantages(batch) != batch.advantages_bt
    cov = token_covariance(batch)
    assert int(out.sum()) == 4
    assert bool(((cov[out] > 1) & (cov[out] < 5)).all())
    again = ClipCov(ratio=0.02)
    again.attach(trainer(seed=4))
    assert not torch.equal(again.token_advantages(batch) != batch.advantages_bt, out)


def test_what_is_logged_is_of_all_micro_batches_of_a_step(tokens, trainer) -> None:
    a, lp = torch.randn(20, 10) * 2, -torch.rand(20, 10) * 4
    batch = tokens(a.tolist(), lp.tolist())
    explorer = ClipCov(ratio=0.02, low=1.0, high=5.0)
    explorer.attach(trainer())
    for _ in range(3):
        explorer.token_advantages(batch)
    assert explorer.metrics() == {"tokens_left_out": 12.0}
    explorer.token_advantages(replace(batch, step=batch.step + 1))
    assert explorer.metrics() == {"tokens_left_out": 4.0}


def test_clip_cov_counts_no_token_that_the_ratio_clips_anyway(tokens, trainer) -> None:
    batch = tokens([[2.0, -2.0]], [[-1.0, -3.0]], old=[[-2.0, -3.0]])  # cov is 2 for both; the first has ratio e
    explorer = ClipCov(ratio=1.0)
    explorer.attach(trainer())
    assert explorer.token_advantages(batch).tolist() == [[2.0, 0.0]]


def test_kl_cov_pulls_the_tokens_of_highest_covariance_back_to_the_old_policy(tokens, trainer) -> None:
    batch = tokens([[1.0, 1.0], [-1.0, -1.0]], [[-1.0, -3.0], [-2.0, -2.5]], old=[[-1.5, -3.0], [-2.0, -2.0]])
    explorer = KlCov(ratio=0.5, weight=2.0)
    explorer.attach(trainer())
    cov = token_covariance(batch).flatten()
    loss = explorer.extra_loss(batch, None)
    assert loss is not None
    loss.backward()
    top = set(cov.topk(2).indices.tolist())
    gradient = batch.logps_bt.grad.flatten() * 4 / 2.0
    sign = (batch.logps_bt.detach() - batch.old_logps_bt).sign().flatten()
    assert [g if i in top else 0.0 for i, g in enumerate(sign.tolist())] == gradient.tolist()


def test_a_ratio_too_small_for_the_batch_still_takes_one_token(tokens, trainer) -> None:
    batch = tokens([[2.0, -2.0, 2.0]], [[-1.0, -3.0, -2.0]], old=[[-1.1, -3.1, -2.1]])
    clip, kl = ClipCov(), KlCov()
    for explorer in (clip, kl):
        explorer.attach(trainer())
    assert int((clip.token_advantages(batch) != batch.advantages_bt).sum()) == 1
    assert payers(kl, batch) == [False, True, False]


def test_kl_cov_takes_no_more_than_its_ratio_where_covariances_tie(tokens, trainer) -> None:
    explorer = KlCov(ratio=0.5)
    explorer.attach(trainer())
    batch = tokens([[0.0] * 4], [[-1.0] * 4], old=[[-2.0] * 4])
    assert sum(payers(explorer, batch)) == 2


def test_kl_cov_finds_its_own_tokens_among_those_of_all_ranks(tokens, trainer) -> None:
    """Ranks of two and one tokens: the three covariances are 1, 4 and 2.5 (gathered in that order)."""
    pays = []
    for rank, (mask, own) in enumerate([([1.0, 1.0], [1.0, 4.0]), ([0.0, 1.0], [2.5])]):
        batch = tokens([[1.0, 1.0]], [[-1.0, -2.0]], old=[[-1.5, -2.5]], mask=[mask])
        batch.gather = Gathered(own)
        explorer = KlCov(ratio=2 / 3)
        explorer.attach(trainer())
        explorer.trainer.accelerator.process_index = rank
        pays.append(payers(explorer, batch))
    assert pays == [[False, True], [False, True]]


class Gathered:
    """Stands for what is gathered: the means of the covariance, the covariances, and how many each rank has."""

    def __init__(self, own: list[float]) -> None:
        self.own, self.calls = own, 0

    def __call__(self, values: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return [values, values, torch.tensor([1.0, 4.0, 2.5]), torch.tensor([2.0, 1.0])][self.calls - 1]


def payers(explorer: KlCov, batch) -> list[bool]:
    loss = explorer.extra_loss(batch, None)
    assert loss is not None
    loss.backward()
    return (batch.logps_bt.grad.flatten() != 0).tolist()


def test_kl_cov_refuses_to_do_nothing(trainer) -> None:
    with pytest.raises(ConfigError, match=r"kl_cov .*steps_per_generation"):
        KlCov().attach(trainer(steps_per_generation=1))


def test_sages_guide_grows_with_the_entropy_above_a_threshold_and_is_bounded() -> None:
    guide = branch_guide(torch.tensor([0.0, 1.2, 2.2, 9.0]), 0.3, 1.2, 0.6, 1.4)
    assert guide.tolist() == pytest.approx([1.0, 1.0, 1.3, 1.4])


def test_sage_turns_trls_kl_into_that_to_the_raised_reference() -> None:
    lp, lr, w = torch.tensor([-1.0, -2.0]), torch.tensor([-1.5, -0.5]), torch.tensor([1.3, 0.8])

    def k3(lr: torch.Tensor) -> torch.Tensor:
        return (lr - lp).exp() - (lr - lp) - 1

    assert torch.allclose(k3(lr) + k3_change(lp, lr, w), k3(lr + w.log()))


@pytest.mark.parametrize("corrected", [True, False])
def test_the_gradient_of_sages_whole_kl_term_is_that_of_the_raised_reference(corrected, tokens, stand_in_trainer):
    """With TRL's correction, the log-ratio to w pi_ref; without, 1 - w pi_ref / pi. Masked tokens have none."""
    explorer = Sage(ratio=0.5, threshold=0.0, high=2.0)
    settings = {"beta": 0.2, "use_bias_correction_kl": corrected, "importance_sampling_level": "token"}
    explorer.attach(stand_in_trainer(settings))
    batch = tokens([[0.0] * 3], [[-1.0, -2.0, -3.0]], entropies=[[0.4, 1.0, 0.0]], mask=[[1.0, 1.0, 0.0]])
    batch.base_logps_bt = torch.tensor([[-1.5, -0.5, -1.0]])
    lp, lr = batch.logps_bt, batch.base_logps_bt
    k3_bt = (lr - lp).exp() - (lr - lp) - 1
    ratio_bt = (lp - lp.detach()).exp() if corrected else 1.0
    (0.2 * batch.token_mean(k3_bt * ratio_bt) + explorer.extra_loss(batch, None)).backward()
    w = torch.tensor([[1.2, 1.5, 1.0]])
    raised = lr + w.log()
    coefficient = lp.detach() - raised if corrected else 1 - (raised - lp.detach()).exp()
    assert torch.allclose(batch.logps_bt.grad[0, :2], 0.2 * coefficient[0, :2] / 2)
    assert batch.logps_bt.grad[0, 2] == 0
    assert explorer.metrics() == {"guide": pytest.approx(1.35)}


def test_sage_refuses_a_run_without_a_fixed_reference(tokens, stand_in_trainer) -> None:
    with pytest.raises(ConfigError, match="set beta above 0"):
        Sage().attach(stand_in_trainer({"beta": 0.0}))
    with pytest.raises(ConfigError, match="cannot be combined"):
        Sage().extra_loss(tokens([[0.0]], [[0.0]]), None)
