"""Tilt: its expected step and its fixed point on policies small enough to enumerate, and in a real trainer."""

from itertools import product
from math import nan
from typing import Any

import pytest
import torch

from offleash.eval.errors import ConfigError
from offleash.train.explorers.advantages.tilt import Tilt, log_ratios_to_go, tilted_advantages
from offleash.train.explorers.advantages.xdr_grpo import XdrGrpo
from offleash.train.explorers.base import Explorer

TAU = 0.5
BASE = torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64)
REWARD = torch.tensor([0.0, 1.0, 1.0, 0.0], dtype=torch.float64)
TILTED = torch.softmax(BASE.log() + REWARD / TAU, 0)


def expected_step(logits: torch.Tensor, size: int = 2) -> torch.Tensor:
    """Mean over all groups of `size` draws of the mean of A grad log pi, in the logits of a softmax policy."""
    policy = logits.softmax(0)
    scores = torch.eye(4, dtype=torch.float64) - policy  # grad log pi(y) in the logits, row y
    step = torch.zeros(4, dtype=torch.float64)
    for group in product(range(4), repeat=size):
        drawn = torch.tensor(group)
        ratios = policy.log()[drawn] - BASE.log()[drawn]
        advantages = tilted_advantages(REWARD[drawn][None], ratios[None], TAU)[0]
        step += policy[drawn].prod() * (advantages[:, None] * scores[drawn]).mean(0)
    return step


@pytest.mark.parametrize("size", [2, 3])
def test_the_expected_step_is_the_gradient_of_reward_less_kl(size: int) -> None:
    logits = torch.tensor([0.3, -0.2, 1.0, 0.0], dtype=torch.float64, requires_grad=True)
    logp = logits.log_softmax(0)
    objective = (logp.exp() * (REWARD - TAU * (logp - BASE.log()))).sum()
    (gradient,) = torch.autograd.grad(objective, logits)
    assert torch.allclose(expected_step(logits.detach(), size), gradient)


def test_following_the_expected_step_ends_at_the_tilt_of_the_base() -> None:
    logits = BASE.log().clone()
    for _ in range(400):
        logits += 3 * expected_step(logits)
    assert torch.allclose(logits.softmax(0), TILTED, atol=1e-5)


def test_at_the_tilt_every_advantage_is_0_whatever_was_drawn() -> None:
    drawn = torch.tensor([[0, 1, 2, 3], [1, 1, 2, 2], [0, 0, 3, 3]])
    ratios = (TILTED.log() - BASE.log())[drawn]
    assert torch.allclose(tilted_advantages(REWARD[drawn], ratios, TAU), torch.zeros(3, 4, dtype=torch.float64))


def test_what_is_not_known_has_no_advantage_and_is_no_baseline() -> None:
    rewards = torch.tensor([[1.0, 0.0, nan, 1.0], [1.0, nan, nan, nan]])
    ratios = torch.tensor([[0.2, 0.4, 0.1, nan], [0.3, 0.0, 0.0, 0.0]])
    u = [1.0 - 0.5 * 0.2, 0.0 - 0.5 * 0.4]
    assert tilted_advantages(rewards, ratios, 0.5).tolist() == [
        pytest.approx([u[0] - u[1], u[1] - u[0], 0, 0]),
        [0] * 4,
    ]


FIRST = torch.tensor([0.6, 0.4], dtype=torch.float64)
SECOND = torch.tensor([[0.7, 0.3], [0.2, 0.8]], dtype=torch.float64)
LOGITS = torch.tensor([[0.1, -0.3], [0.5, 0.2], [-0.4, 0.9]], dtype=torch.float64)  # first, after 0, after 1


@pytest.mark.parametrize("size", [1, 3])
def test_credit_to_go_has_the_expected_gradient_of_the_sequences_kl(size: int) -> None:
    """Two tokens of two kinds; brute force over all micro-batches, against autograd of the exact KL."""
    logits = LOGITS.clone().requires_grad_()
    logp = logits.log_softmax(1)
    rows = list(product(range(2), repeat=2))
    row_logp = torch.stack([logp[0, a] + logp[1 + a, b] for a, b in rows])
    row_base = torch.stack([(FIRST[a] * SECOND[a, b]).log() for a, b in rows])
    (exact,) = torch.autograd.grad((row_logp.exp() * (row_logp - row_base)).sum(), logits, retain_graph=True)
    ratios = torch.stack(
        [torch.stack([logp[0, a] - FIRST[a].log(), logp[1 + a, b] - SECOND[a, b].log()]) for a, b in rows]
    )
    step = torch.zeros_like(exact)
    for batch in product(range(4), repeat=size):
        drawn = torch.tensor(batch)
        credit = log_ratios_to_go(ratios.detach()[drawn], torch.ones(size, 2))
        token_logp = torch.stack([torch.stack([logp[0, rows[i][0]], logp[1 + rows[i][0], rows[i][1]]]) for i in batch])
        (gradient,) = torch.autograd.grad((credit * token_logp).sum(1).mean(), logits, retain_graph=True)
        step += row_logp.detach().exp()[drawn].prod() * gradient
    assert torch.allclose(step, exact)


def test_to_go_is_the_sum_from_a_token_on_of_rows_that_have_it() -> None:
    ratios = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 99.0]])
    mask = torch.tensor([[1.0, 1.0, 1.0], [1.0, 1.0, 0.0]])
    assert log_ratios_to_go(ratios, mask).tolist() == [[6.0 - 9.0, 5.0 - 5.0, 3.0], [9.0 - 6.0, 5.0 - 5.0, 0.0]]


def test_a_loss_divided_by_length_is_refused(stand_in_trainer) -> None:
    for bad in ({"loss_type": "grpo"}, {"loss_type": "bnpo"}, {"importance_sampling_level": "sequence"}):
        settings = {"loss_type": "dapo", "importance_sampling_level": "token", **bad}
        with pytest.raises(ConfigError, match="explorer tilt needs a loss"):
            Tilt().attach(stand_in_trainer(settings))
        with pytest.raises(ConfigError, match="explorer xdr_grpo needs a loss"):
            XdrGrpo().attach(stand_in_trainer(settings))
    with pytest.raises(ConfigError, match="credit of tilt"):
        Tilt(credit="token")


class Watch(Explorer):
    """Keeps what it is given, and leaves all as it is."""

    needs_logps = needs_base_logps = needs_completions = True

    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.tokens: list[Any] = []

    def advantages(self, rollouts: Any, advantages_pg: torch.Tensor) -> torch.Tensor:
        self.seen.append(rollouts)
        return advantages_pg

    def token_advantages(self, tokens: Any) -> torch.Tensor:
        self.tokens.append(tokens)
        return tokens.advantages_bt


@pytest.fixture
def watched(make_trainer):
    def run(name: str, **settings: Any) -> tuple[Watch, Any]:
        watch = Watch()
        trainer = make_trainer(name, [watch], **{"max_steps": 2, **settings})
        trainer.train()
        return watch, trainer

    return run


def test_the_log_probabilities_are_those_of_teacher_forcing_with_and_without_a_reference(watched, lab_model) -> None:
    """At step 0 the policy is the base. Without a KL reference the base is a copy of its own, with the same numbers."""
    model, tokenizer = lab_model
    (first, trainer), (second, _) = watched("with", beta=0.01), watched("without", beta=0.0)
    prompts = {problem.id: problem.prompt for problem in trainer.verifier.task.problems}
    for watch in (first, second):
        rollouts = watch.seen[0]
        assert torch.allclose(rollouts.sequence_logps_pg, rollouts.base_logps_pg, atol=1e-4)
        ids = rollouts.completion_ids_pg[1][2]
        prompt = tokenizer(prompts[rollouts.problem_ids[1]])["input_ids"]
        with torch.no_grad():
            logps = model(torch.tensor([[*prompt, *ids]])).logits[0].log_softmax(-1)
        exact = sum(float(logps[len(prompt) - 1 + i, token]) for i, token in enumerate(ids))
        assert float(rollouts.base_logps_pg[1, 2]) == pytest.approx(exact, abs=1e-3)
        assert float(rollouts.logps_pg[1, 2]) == pytest.approx(exact / len(ids), abs=1e-3)
        assert not torch.allclose(watch.seen[1].sequence_logps_pg, watch.seen[1].base_logps_pg, atol=1e-3)
        tokens = watch.tokens[1]
        sums_b = ((tokens.logps_bt.detach() - tokens.base_logps_bt) * tokens.mask_bt).sum(1)
        known = watch.seen[1].sequence_logps_pg - watch.seen[1].base_logps_pg
        assert torch.allclose(sums_b.sort().values, known.flatten().sort().values, atol=1e-4)  # TRL shuffles rows


@pytest.mark.long
def test_without_an_explorer_that_asks_only_what_is_free_is_given(make_trainer) -> None:
    class Reads(Watch):
        needs_logps = needs_base_logps = needs_completions = False

    for beta, given in ((0.01, True), (0.0, False)):
        reads = Reads()
        make_trainer(f"run-{beta}", [reads], max_steps=1, beta=beta).train()
        (rollouts,), (tokens,) = reads.seen, reads.tokens
        assert (rollouts.base_logps_pg is not None) == given == (tokens.base_logps_bt is not None)
        assert rollouts.logps_pg is rollouts.sequence_logps_pg is rollouts.completion_ids_pg is None


@pytest.mark.long
@pytest.mark.parametrize("credit", ["sequence", "to_go"])
def test_a_run_starts_as_reinforce_and_logs_its_kl(credit: str, make_trainer, trajectory) -> None:
    trainer = make_trainer("run", [Tilt(credit=credit)], beta=0.0, max_steps=3)
    trainer.train()
    first, *_, last = [row["explorer/log_ratio"] for row in trajectory(trainer)]
    assert first == pytest.approx(0, abs=1e-5)
    assert last > 1e-4


class OwnKl(Explorer):
    """No reward; the KL to the base as the log-ratio of each token."""

    needs_base_logps = True

    def __init__(self, weight: float) -> None:
        self.weight = weight

    def advantages(self, rollouts: Any, advantages_pg: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(advantages_pg)

    def token_advantages(self, tokens: Any) -> torch.Tensor:
        return -self.weight * (tokens.old_logps_bt - tokens.base_logps_bt)


@pytest.mark.long
def test_trls_kl_term_is_the_policy_gradient_of_each_tokens_own_log_ratio(make_trainer, trajectory) -> None:
    """What the docstring of tilt says of `beta`. Fails if TRL changes its KL term."""
    norms = []
    for beta, weight in ((0.5, 0.0), (0.0, 0.5)):
        trainer = make_trainer(f"run-{beta}", [OwnKl(weight)], beta=beta, max_steps=1, max_grad_norm=1e9)
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for parameter in trainer.model.parameters():
                parameter += 0.02 * torch.randn(parameter.shape, generator=generator)
        trainer.train()
        norms.append(trajectory(trainer)[0]["grad_norm"])
    assert norms[0] == pytest.approx(norms[1], rel=1e-4)
    assert norms[0] > 1e-3


def test_the_free_tilts_kl_is_the_square_of_its_gain_over_twice_the_variance() -> None:
    """The docstring's approximation, for a weight close to 1."""
    right = float((BASE * REWARD).sum())
    near = torch.softmax(BASE.log() + 0.05 * REWARD, 0)
    gain = float((near * REWARD).sum()) - right
    kl = float((near * (near / BASE).log()).sum())
    assert kl == pytest.approx(gain**2 / (2 * right * (1 - right)), rel=0.05)
