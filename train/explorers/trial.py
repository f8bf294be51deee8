"""An explorer is tried on rollouts made by hand before anything is sampled: a mistake costs a line, not a night.

Every hook that its class overrides gets groups that are all correct, all wrong, mixed and without a verdict, one group
and several, with answers and without. A hook that asks its trainer for something that only a real one has (the model,
the tokenizer) cannot be tried, nor is `collect`. Where `prepare` is overridden a hook may rely on it, so that an
exception says nothing; what it returns does.
"""

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import partial
from typing import Any, NamedTuple, TypeVar

import torch
from transformers import TrainerState
from trl import GRPOConfig

from offleash.callbacks.policy.sampler import isolated_rng
from offleash.eval.errors import ConfigError, OffleashError, first_line
from offleash.train.explorers.base import Explorer, Rollouts, Tokens, normalized
from offleash.train.explorers.checks import check_shape, check_solved_alike, overrides

TOKENS = 5
T = TypeVar("T")


def try_explorer(name: str, explorer: Explorer, training: GRPOConfig) -> list[str]:
    """The hooks that could be tried. Raises ConfigError naming the hook and the case in which it goes wrong.

    The explorer is used up: train with another instance.
    """
    trial = _Trial(name, explorer, training)
    with isolated_rng():
        return [hook for hook, tried in _HOOKS.items() if overrides(explorer, hook) and trial.completes(tried)]


def try_instance(explorer: Explorer, training: GRPOConfig) -> list[str]:
    """The same for an explorer that is already there, on a copy of it."""
    kind = type(explorer)
    try:
        spare = copy.deepcopy(explorer)
    except TypeError:  # it holds something that cannot be copied, such as a lock
        return []
    return try_explorer(f"{kind.__module__}:{kind.__qualname__}", spare, training)


class _NeedsTrainer(Exception):
    """What a hook asked for, only a real trainer has."""


class _Partial:
    """Has the attributes that it was given; to ask for any other one takes a real trainer."""

    def __init__(self, **known: Any) -> None:
        vars(self).update(known)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise _NeedsTrainer(name)


def _no_trainer(training: GRPOConfig) -> Any:
    """A trainer before its first step, on one process, without a model."""
    one_process = {"process_index": 0, "num_processes": 1, "is_main_process": True, "is_local_main_process": True}
    return _Partial(
        args=training,
        state=TrainerState(max_steps=training.max_steps),
        accelerator=_Partial(**one_process, device=torch.device("cpu")),
        current_gradient_accumulation_steps=1,
        **{key: getattr(training, key) for key in ("num_generations", "temperature", "max_completion_length")},
    )


class _Case(NamedTuple):
    name: str
    rollouts: Rollouts


class _Trial:
    def __init__(self, name: str, explorer: Explorer, training: GRPOConfig) -> None:
        self.name, self.explorer, self.training = name, explorer, training
        self.size = training.num_generations or 4
        self.is_attached = False
        has_reference = training.beta != 0 and not training.sync_ref_model and not explorer.moves_reference
        self.knows_base = has_reference or explorer.needs_base_logps

    def completes(self, tried: "Callable[[_Trial], None]") -> bool:
        try:
            if not self.is_attached:
                self.explorer.attach(_no_trainer(self.training))
                self.is_attached = True
            tried(self)
        except _NeedsTrainer:
            return False
        return True

    def call(self, hook: str, case: str, work: Callable[[], T], given: Sequence[Any]) -> T:
        """The hook's value, if it raises nothing and leaves what it was given as it was."""
        before = [(part, _tensors(part)) for part in given]
        copies = [{key: value.detach().clone() for key, value in tensors.items()} for _, tensors in before]
        try:
            value = work()
        except (_NeedsTrainer, OffleashError):
            raise
        except Exception as error:  # of any kind: it is the user's code
            if overrides(self.explorer, "prepare"):
                raise _NeedsTrainer(hook) from error
            raise self.fault(hook, f"raised {type(error).__name__}: {first_line(error)}", case) from error
        for (part, tensors), kept in zip(before, copies, strict=True):
            for key, tensor in _tensors(part).items():
                if tensor is not tensors[key] or not _equal(tensor, kept[key]):
                    raise self.fault(hook, f"modified {key} in place: return a new tensor", case)
        return value

    def fault(self, hook: str, what: str, case: str) -> ConfigError:
        return ConfigError(f"explorer {self.name!r}: {hook} {what} (tried on {case})")

    def check_values(self, hook: str, case: str, value: Any, shape: torch.Size, unknown: Any = False) -> None:
        """A tensor of this shape, without gradient; a number wherever it is not `unknown`."""
        try:
            check_shape(self.explorer, hook, value, shape)
        except ConfigError as error:
            raise ConfigError(f"{error} (tried on {case})") from error
        if not value.is_floating_point():
            raise self.fault(hook, f"must return floating-point numbers, got {value.dtype}", case)
        if value.requires_grad:
            raise self.fault(hook, "must return a tensor without gradient: use detach()", case)
        if (~value.isfinite() & ~torch.as_tensor(unknown)).any():
            raise self.fault(hook, f"returned {_odd(value, unknown)} where everything it was given is known", case)


def _try_rewards(trial: _Trial) -> None:
    for case, rollouts in _cases(trial):
        value = trial.call("rewards", case, partial(trial.explorer.rewards, rollouts), [rollouts])
        trial.check_values("rewards", case, value, rollouts.rewards_pg.shape, rollouts.rewards_pg.isnan())


def _try_advantages(trial: _Trial) -> None:
    explorer = trial.explorer
    for case, rollouts in _cases(trial):
        stock_pg = normalized(rollouts.rewards_pg, "group")
        given = stock_pg.clone()
        work = partial(explorer.advantages, rollouts, given)
        value = trial.call("advantages", case, work, [rollouts, {"advantages_pg": given}])
        trial.check_values("advantages", case, value, stock_pg.shape, rollouts.rewards_pg.isnan())
        if not explorer.splits_solved:
            try:
                check_solved_alike(explorer, rollouts.rewards_pg, stock_pg, value)
            except ConfigError as error:
                raise ConfigError(f"{error} (tried on {case})") from error


def _try_token_advantages(trial: _Trial) -> None:
    case, tokens = "a batch of tokens", _tokens(trial)
    value = trial.call("token_advantages", case, lambda: trial.explorer.token_advantages(tokens), [tokens])
    trial.check_values("token_advantages", case, value, tokens.advantages_bt.shape)


def _try_extra_loss(trial: _Trial) -> None:
    case, tokens, model = "a batch of tokens", _tokens(trial), _Partial()
    value = trial.call("extra_loss", case, lambda: trial.explorer.extra_loss(tokens, model), [tokens])
    if value is None:
        return
    check_shape(trial.explorer, "extra_loss", value, torch.Size())
    if not value.isfinite():
        raise trial.fault("extra_loss", f"is {value.item()}", case)


def _try_traces(trial: _Trial) -> None:
    case, names = "two problems", ["p0", "p1"]
    value = trial.call("traces", case, lambda: trial.explorer.traces(names), [])
    is_list = isinstance(value, list | tuple) and len(value) == len(names)
    if not is_list or not all(trace is None or isinstance(trace, list | tuple) for trace in value):
        raise trial.fault(
            "traces", f"must return a list of token ids or None for each of 2 problems, got {value!r}", case
        )


def _try_metrics(trial: _Trial) -> None:
    value = trial.call("metrics", "what the other hooks left", trial.explorer.metrics, [])
    is_mapping = isinstance(value, Mapping) and all(isinstance(key, str) for key in value)
    if not is_mapping or not all(isinstance(number, int | float) for number in value.values()):
        raise ConfigError(f"explorer {trial.name!r}: metrics must return names with numbers, got {value!r}")


_HOOKS: dict[str, Callable[[_Trial], None]] = {
    "rewards": _try_rewards,
    "advantages": _try_advantages,
    "token_advantages": _try_token_advantages,
    "extra_loss": _try_extra_loss,
    "traces": _try_traces,
    "metrics": _try_metrics,
}


def _cases(trial: _Trial) -> Iterator[_Case]:
    size = trial.size
    correct, wrong, failed = [1.0] * size, [0.0] * size, [math.nan] * size
    mixed = [float(i % 2) for i in range(size)]
    partly = [math.nan, *mixed[1:]]
    several = [correct, wrong, mixed, partly, failed]
    yield _Case("one group, all correct", _rollouts(trial, [correct]))
    yield _Case("one group, all wrong", _rollouts(trial, [wrong]))
    yield _Case("one mixed group", _rollouts(trial, [mixed]))
    yield _Case("one group on which the verifier failed", _rollouts(trial, [failed]))
    yield _Case("several groups", _rollouts(trial, several))
    yield _Case("several groups, the same again", _rollouts(trial, several))
    yield _Case("several groups, completions without an answer", _rollouts(trial, several, answered=False))
    yield _Case("several groups, truncated completions", _rollouts(trial, several, truncated=True))


def _rollouts(
    trial: _Trial, groups: Sequence[Sequence[float]], *, answered: bool = True, truncated: bool = False
) -> Rollouts:
    explorer, size = trial.explorer, trial.size
    rewards_pg = torch.tensor(groups)
    lengths_pg = 1 + torch.arange(rewards_pg.numel()).view_as(rewards_pg) % TOKENS
    means_pg = -0.2 - 0.1 * (torch.arange(rewards_pg.numel()).view_as(rewards_pg) % 7)
    cut_pg = torch.zeros_like(rewards_pg, dtype=torch.bool)
    cut_pg[:, -1] = truncated
    sums_pg = torch.where(cut_pg, torch.nan, means_pg * lengths_pg)
    ids = tuple(
        tuple(() if cut else tuple(range(3, 3 + n)) for n, cut in zip(row, cuts, strict=True))
        for row, cuts in zip(lengths_pg.tolist(), cut_pg.tolist(), strict=True)
    )
    answers = tuple(str(i // 2) if answered else None for i in range(size))
    return Rollouts(
        step=0,
        problem_ids=tuple(f"p{i}" for i in range(len(groups))),
        rewards_pg=rewards_pg,
        answers_pg=(answers,) * len(groups),
        logps_pg=sums_pg / lengths_pg if explorer.needs_logps else None,
        off_policy_pg=torch.zeros_like(cut_pg),
        sequence_logps_pg=sums_pg if explorer.needs_logps else None,
        base_logps_pg=sums_pg - 0.3 if trial.knows_base else None,
        completion_ids_pg=ids if explorer.needs_completions else None,
    )


def _tokens(trial: _Trial) -> Tokens:
    """One group with advantages of both signs; rows have different lengths."""
    rows = trial.size
    lengths_b1 = 1 + torch.arange(rows)[:, None] % TOKENS
    mask_bt = (torch.arange(TOKENS)[None] < lengths_b1).long()
    logps_bt = (-0.2 - 0.1 * torch.arange(rows * TOKENS).view(rows, TOKENS) % 1.3).requires_grad_()
    advantages_b1 = torch.where(torch.arange(rows)[:, None] % 2 == 0, 1.0, -1.0)
    return Tokens(
        step=0,
        advantages_bt=advantages_b1.expand(rows, TOKENS).clone(),
        logps_bt=logps_bt,
        old_logps_bt=logps_bt.detach().clone(),
        entropies_bt=torch.full((rows, TOKENS), 0.5),
        mask_bt=mask_bt,
        off_policy_b=torch.zeros(rows, dtype=torch.bool),
        token_mean=lambda loss_bt: (loss_bt * mask_bt).sum() / mask_bt.sum(),
        gather=lambda values: values,
        base_logps_bt=logps_bt.detach() - 0.1 if trial.knows_base else None,
    )


def _tensors(part: Any) -> dict[str, torch.Tensor]:
    values = part if isinstance(part, dict) else {field.name: getattr(part, field.name) for field in fields(part)}
    return {key: value for key, value in values.items() if torch.is_tensor(value)}


def _equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.shape == b.shape and bool(((a == b) | (a.isnan() & b.isnan())).all())


def _odd(value: torch.Tensor, unknown: Any) -> str:
    return str(value[~value.isfinite() & ~torch.as_tensor(unknown)][0].item())
