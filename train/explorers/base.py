"""The interface of exploration variants: one small class with hooks into GRPO, all of them optional.

    class Rare(Explorer):
        '''Rewards correct rollouts a little more in groups that have few of them.'''

        def __init__(self, weight: float = 0.1) -> None:
            self.weight = weight

        def advantages(self, rollouts, advantages_pg):
            rare_p1 = rollouts.rewards_pg.nanmean(1, keepdim=True) < 0.5
            return advantages_pg + self.weight * rare_p1 * (rollouts.rewards_pg == 1)

In a recipe: `explorer: {"my_module:Rare": {weight: 0.2}}`. As flags: `--explorer my_module:Rare --explorer.weight 0.2`.
In a comparison: `offleash variants --explorers "my_module:Rare{weight: 0.2}" ...`. On a trainer of your own:
`offleash.train.explore(trainer, {"my_module:Rare": {"weight": 0.2}})`.

Hooks receive the full generation batch, gathered from all ranks: a rank holds only part of a group. The true reward is
never changed; what a hook adds is logged separately, under `explorer/`. A hook returns a new tensor and must not modify
its arguments in place.

`rewards` or `advantages`? Use `advantages` for a bonus that is added at its own scale. Use `rewards` for what should
enter the group's mean and standard deviation: the result is normalized, and a small bonus may become a large advantage.

Several explorers act in the order in which they are listed. All `rewards` come first; each sees the true rewards, and
their changes add up. The sum is normalized once. Then come all `advantages`, each applied to the result of the previous
explorer, and in the loss all `token_advantages` likewise. Extra losses add up. Only one explorer may have a `collect`,
and only one `traces`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol

import torch
from trl import GRPOConfig

from offleash.callbacks.policy.trainer_protocol import PolicyTrainer
from offleash.callbacks.policy.trl_seam import nanstd
from offleash.eval.problem import Task, Verdict


@dataclass(frozen=True, slots=True)
class Rollouts:
    """A generation batch of all ranks: P problems, G rollouts of each. The same on every rank, on the CPU.

    Log-probabilities are the trainer's, at the training temperature, also where vLLM draws, and NaN for a completion
    without tokens. One that is not trained on because it was truncated (`mask_truncated_completions`) has that of the
    policy, NaN for the base, and no token ids.

    Example:
        >>> import torch
        >>> from offleash.train import Rollouts
        >>> rollouts = Rollouts(
        ...     step=0,
        ...     problem_ids=("a", "b"),
        ...     rewards_pg=torch.tensor([[1.0, 0.0], [0.0, 0.0]]),
        ...     answers_pg=(("7", "8"), ("3", None)),
        ...     logps_pg=None,
        ...     off_policy_pg=torch.zeros(2, 2, dtype=torch.bool),
        ... )
        >>> rollouts.rewards_pg.mean(1)
        tensor([0.5000, 0.0000])
    """

    step: int
    problem_ids: tuple[str, ...]
    rewards_pg: torch.Tensor
    """From the verifier: 1 correct, 0 wrong, NaN where it failed. Other reward functions of the run are not in it."""
    answers_pg: tuple[tuple[str | None, ...], ...]
    """Normalized; None where a completion has no answer."""
    logps_pg: torch.Tensor | None
    """Mean token log-probability under the policy that drew it. None unless the explorer `needs_logps`."""
    off_policy_pg: torch.Tensor
    """True where a trace from another source replaces a rollout."""
    sequence_logps_pg: torch.Tensor | None = None
    """Log-probability of the whole completion under the policy that drew it. None unless the explorer `needs_logps`."""
    base_logps_pg: torch.Tensor | None = None
    """The same under the frozen base. Given whenever the KL reference is the base (`beta > 0`, no reset of it), and to
    an explorer that `needs_base_logps`; otherwise None."""
    completion_ids_pg: tuple[tuple[tuple[int, ...], ...], ...] | None = None
    """Token ids, the end token included. None unless the explorer `needs_completions`."""


@dataclass(slots=True)
class Tokens:
    """The per-token inputs of the loss of one local micro-batch: B rows, T tokens.

    Example:
        >>> import torch
        >>> from offleash.train import Tokens
        >>> ones_bt = torch.ones(2, 3)
        >>> tokens = Tokens(
        ...     step=0,
        ...     advantages_bt=0.5 * ones_bt,
        ...     logps_bt=-ones_bt,
        ...     old_logps_bt=-ones_bt,
        ...     entropies_bt=ones_bt,
        ...     mask_bt=ones_bt,
        ...     off_policy_b=torch.zeros(2, dtype=torch.bool),
        ...     token_mean=torch.mean,
        ...     gather=lambda values: values,
        ... )
        >>> tokens.token_mean(tokens.advantages_bt * tokens.entropies_bt)
        tensor(0.5000)
    """

    step: int
    advantages_bt: torch.Tensor
    logps_bt: torch.Tensor
    """Of the current policy, with gradient."""
    old_logps_bt: torch.Tensor
    """Of the policy that drew the rollouts: at the first update after a rollout the same values, without gradient.

    The trainer's own, also where vLLM draws: how vLLM's differ is in the weights by which TRL multiplies the policy
    loss, and so what `token_advantages` changes, but neither its KL term nor an `extra_loss`."""
    entropies_bt: torch.Tensor
    mask_bt: torch.Tensor
    off_policy_b: torch.Tensor
    token_mean: Callable[[torch.Tensor], torch.Tensor] = field(repr=False)
    """Reduces a per-token loss the way TRL reduces its own under the recipe's `loss_type`."""
    gather: Callable[[torch.Tensor], torch.Tensor] = field(repr=False)
    """Concatenates a one-dimensional tensor over all ranks; lengths may differ."""
    base_logps_bt: torch.Tensor | None = None
    """Of the frozen base, without gradient; None where `Rollouts.base_logps_pg` is."""


Explored = Callable[[list[Any]], tuple[dict[str, Any], Rollouts]]
"""Generates and scores: this rank's dataset rows -> TRL's batch with shaped advantages, the rollouts of all ranks."""


class Verifier(Protocol):
    """Who says what is correct in training."""

    @property
    def task(self) -> Task: ...


class RolloutVerifier(Verifier, Protocol):
    """A verifier with what the trainer asks of it: the problem of a dataset row, and a verdict for each rollout."""

    latest: list[Verdict]
    """Of this rank's latest rollouts."""
    reward_index: int | None
    """Which of the trainer's reward functions gives its verdicts; None if none of them does."""

    def problem_id(self, row: Mapping[str, Any]) -> str: ...
    def judge(
        self, rows: Sequence[Any], completions: Sequence[Any], ids: Sequence[Any], rewards_bf: torch.Tensor
    ) -> None:
        """Called after the reward functions, with the dataset rows, the rollouts and all rewards of them."""


class ExplorerTrainer(PolicyTrainer, Protocol):
    """What an explorer may use of its trainer: the public names of `trl.GRPOTrainer`, and the verifier."""

    verifier: Verifier

    def problem_ids(self, rows: Iterable[Mapping[str, Any]]) -> list[str]: ...


class Explorer:
    """The base class of exploration variants. It changes nothing by itself: the trajectory is that of stock TRL.

    A subclass overrides the hooks it needs. The arguments of its `__init__` are what a recipe may set.

    Example:
        >>> import torch
        >>> from offleash.train import Explorer, Rollouts
        >>> class HalfStep(Explorer):
        ...     def advantages(self, rollouts, advantages_pg):
        ...         return advantages_pg / 2
        >>> rewards_pg = torch.tensor([[1.0, 0.0]])
        >>> rollouts = Rollouts(0, ("a",), rewards_pg, (("7", "8"),), None, torch.zeros(1, 2, dtype=torch.bool))
        >>> HalfStep().advantages(rollouts, torch.tensor([[1.0, -1.0]]))
        tensor([[ 0.5000, -0.5000]])
    """

    needs_logps: ClassVar[bool] = False
    """Whether a hook reads `logps_pg` or `sequence_logps_pg`. Costs a forward pass with one update per rollout, unless
    TRL corrects for vLLM's samples and makes it anyway; and one over truncated completions if they are masked."""
    needs_base_logps: ClassVar[bool] = False
    """Whether a hook reads the base's log-probabilities. Without a KL reference that stays the base it costs a copy of
    the base and a forward pass."""
    needs_completions: ClassVar[bool] = False
    """Whether a hook reads `completion_ids_pg`."""
    needs_answers: ClassVar[bool] = False
    """Whether it has no effect where answers are not told apart: `answers_pg` has only None."""
    rewards_only: ClassVar[bool] = False
    """Whether it acts through advantages alone that depend on nothing but the rewards of the group: neither on answers
    nor on lengths, likelihoods or the base."""
    splits_solved: ClassVar[bool] = False
    """Whether its advantages may differ between the rollouts of an all-correct group. An objective that includes the
    base's likelihood has to; a bonus must not, or it would take apart what is solved."""
    moves_reference: ClassVar[bool] = False
    """Whether the KL reference is replaced during training; the monitor then keeps its own copy of the base."""
    replaces_advantages: ClassVar[bool] = False
    """Whether `advantages` recomputes them from the true rewards. Only the first explorer with such a hook may."""
    rows_apart: bool = False
    """Whether `token_advantages` makes of each rollout what it would make of it alone, and so does `extra_loss`, if it
    reads rollouts at all, and adds them up by `token_mean`. Rollouts of an optimizer step may then be put into
    micro-batches by their length, which is cheaper."""
    text_only: ClassVar[bool] = False
    """Whether it assembles batches itself and does not support images in prompts."""
    trainer: ExplorerTrainer

    def check(self, training: GRPOConfig) -> None:
        """Raise ConfigError for settings under which this explorer has no effect or a different one."""

    def attach(self, trainer: ExplorerTrainer) -> None:
        """Called once, when the trainer is built."""
        self.trainer = trainer
        self.check(trainer.args)

    def prepare(self, step: int) -> None:
        """Called once, when training starts or resumes at `step`."""

    def collect(self, inputs: list[Any], explored: Explored) -> dict[str, Any]:
        """TRL's generation batch for this rank's dataset rows. `explored` may be called repeatedly, with other rows."""
        return explored(inputs)[0]

    def traces(self, problem_ids: Sequence[str]) -> list[list[int] | None]:
        """For each problem the token ids of a trace that replaces its last rollout, or None."""
        return [None] * len(problem_ids)

    def rewards(self, rollouts: Rollouts) -> torch.Tensor:
        """(P, G) rewards from which the advantages are computed, as TRL does; all-correct groups keep advantage 0.

        Under `scale_rewards: group` they are divided by the group's standard deviation, also in all-wrong groups: a
        bonus of 0.01 for one rollout of four becomes an advantage of 1.47.
        """
        return rollouts.rewards_pg

    def advantages(self, rollouts: Rollouts, advantages_pg: torch.Tensor) -> torch.Tensor:
        """(P, G) advantages, the same for all rollouts of an all-correct group unless the explorer `splits_solved`."""
        return advantages_pg

    def token_advantages(self, tokens: Tokens) -> torch.Tensor:
        """(B, T) advantages, without gradient."""
        return tokens.advantages_bt

    def extra_loss(self, tokens: Tokens, model: Any) -> torch.Tensor | None:
        """A scalar to add to the loss of this micro-batch (see `Tokens.token_mean`)."""
        return None

    def after_step(self, step: int) -> None:
        """Called after every optimizer step, before its checkpoint is written."""

    def metrics(self) -> dict[str, float]:
        """Metrics to log under `explorer/`, read after every optimizer step."""
        return {}

    def save(self, folder: Path) -> None:
        """Write the state that a resume needs into the checkpoint. Called on every rank; only the main one should write
        (`self.trainer.accelerator.is_main_process`)."""

    def load(self, folder: Path) -> None:
        """Restore the state. Called on every rank."""


def all_correct(rewards_pg: torch.Tensor) -> torch.Tensor:
    """(P, 1) True where every rollout that was scored is correct."""
    return ((rewards_pg == 1) | rewards_pg.isnan()).all(1, keepdim=True)


def normalized(rewards_pg: torch.Tensor, scale: str) -> torch.Tensor:
    """TRL's advantages: reward minus the group's mean, over the group's (or batch's) standard deviation + 1e-4."""
    centered_pg = rewards_pg - rewards_pg.nanmean(1, keepdim=True)
    if scale == "none":
        return centered_pg.nan_to_num()
    std = nanstd(rewards_pg) if scale == "batch" else nanstd(rewards_pg, dim=1, keepdim=True)
    return (centered_pg / (std + 1e-4)).nan_to_num()
