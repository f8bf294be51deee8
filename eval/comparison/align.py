"""Two pools of one task brought to the same draws, as arrays over problems and units.

Support grows with the number of draws, and the plug-in entropy and the majority depend on it too: they are only
compared at equal budgets. Of fixed plans each problem keeps the first k draws on both sides, k being the smaller of its
two budgets. A plan that stops at r successes says less of a problem than it drew: both pools are cut to the same plan,
the smaller r and the smaller cap, which is exact for any pool that holds those draws (`stats.stopping`). Such a
plan asks whether a problem is solved, not which of its answers are reached: a problem is one unit then. pass@k needs no
cut: its estimators use every draw of each pool.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from offleash.eval.errors import PoolError
from offleash.eval.pool.counts import VALUES, Tally
from offleash.eval.pool.pool import Pool
from offleash.eval.stats.passk import pass_at_k
from offleash.eval.stats.stopping import stopped_pass_at_k

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_UNSEEN, _MISS, _HIT = 0, 1, 2


class Stop(NamedTuple):
    """A plan: at most `cap` draws, done at `successes` correct ones (None: never)."""

    successes: int | None
    cap: int


class Reader:
    """A pool read at most once per set of draws."""

    def __init__(self, pool: Pool, note: Callable[[str], None] | None = None) -> None:
        self.pool, self.note = pool, note

    @cached_property
    def all(self) -> Tally:
        return self.pool.tally(note=self.note)

    def first(self, limit_p: Ints | None) -> Tally:
        """Of the draws with an index below each problem's limit; None is all of them."""
        return self.all if limit_p is None else self.pool.tally(limit_p, self.note)

    @property
    def successes(self) -> int | None:
        """At which the plan stops a problem."""
        return self.pool.spec.plan.successes

    @cached_property
    def trace_pk(self) -> NDArray[np.int8]:
        """What each draw was: unseen, a miss or a hit."""
        trace_pk = np.zeros((len(self.pool.problem_ids), self.pool.spec.k), np.int8)
        for chunk in self.pool.scan(["correct"]):
            correct_r = chunk.columns.column("correct").to_numpy(zero_copy_only=False)
            trace_pk[chunk.problem_r, chunk.index_r] = np.where(correct_r, _HIT, _MISS)
        return trace_pk

    def reach(self, successes: int | None) -> Ints:
        """How many draws of each problem a plan could ask for: up to the first gap, or any number once it is done."""
        prefix_p = _first(self.trace_pk == _UNSEEN)
        if successes is None:
            return prefix_p
        done_p = _first(self._hits_so_far() >= successes) < prefix_p
        return np.where(done_p, self.pool.spec.k, prefix_p)

    def stop(self, plan: Stop) -> Ints:
        """Where the plan leaves each problem: how many of its first draws it takes."""
        if plan.successes is None:
            return np.full(len(self.pool.problem_ids), plan.cap)
        return np.minimum(_first(self._hits_so_far() >= plan.successes) + 1, plan.cap)

    def _hits_so_far(self) -> NDArray[np.int32]:
        return np.cumsum(self.trace_pk == _HIT, axis=1, dtype=np.int32)


@dataclass(frozen=True, slots=True, eq=False)
class Arm:
    """One side of a pair, over the problems kept."""

    n_p: Ints
    correct_p: Ints
    hits_u: Ints
    """At the draws in common."""
    all_n_p: Ints
    all_correct_p: Ints
    plan: Stop | None
    """Of its own plan, with all its draws; None if it is a fixed one."""
    values: dict[str, Floats]
    """Per problem: what a contrast is made of, see `_values`."""

    def curve(self, ks: Sequence[int]) -> Floats:
        """Unbiased pass@k: [p, k]."""
        plan = self.plan
        if plan is None or plan.successes is None:
            return pass_at_k(self.all_correct_p, self.all_n_p, ks)
        return stopped_pass_at_k(self.all_n_p, self.all_correct_p, ks, successes=plan.successes, cap=plan.cap)


@dataclass(frozen=True, slots=True, eq=False)
class Paired:
    """One task on both sides, over the problems that both have draws of."""

    task: str
    kept: Ints
    """Places of these problems among the pool's."""
    domain_p: list[str]
    unit_problem: Ints
    """Index into the problems kept."""
    unit_answer: tuple[str | None, ...]
    base: Arm
    policy: Arm
    plan: Stop | None
    """The plan both were cut to; None if both are fixed, then their `n_p` are equal."""
    rows_k: int
    base_limit_p: Ints
    policy_limit_p: Ints
    """Over all problems of the pool: the draws compared have an index below it."""
    notes: tuple[str, ...]


def pair(base: Reader, policy: Reader, k: int | None = None) -> Paired:
    """Bring two pools of the same problems to the same draws, at most `k` of each problem."""
    if k is not None and k < 1:
        raise PoolError(f"k must be at least 1, got {k}")
    n_base, n_policy = base.all.hits.n_p, policy.all.hits.n_p
    kept = np.flatnonzero((n_base > 0) & (n_policy > 0))
    if not len(kept):
        raise PoolError(f"{base.pool.path} and {policy.pool.path} have no problem with draws on both sides")
    if base.successes is None and policy.successes is None:
        return _pair_fixed(base, policy, kept, k)
    return _pair_stopped(base, policy, kept, k)


def _pair_fixed(base: Reader, policy: Reader, kept: Ints, k: int | None) -> Paired:
    n_base, n_policy = base.all.hits.n_p, policy.all.hits.n_p
    k_p = np.minimum(n_base, n_policy)
    k_p = k_p if k is None else np.minimum(k_p, k)
    limits = [_limit(reader, k_p) for reader in (base, policy)]
    tallies = [reader.first(limit_p) for reader, limit_p in zip((base, policy), limits, strict=True)]
    notes = []
    if k is not None and k > int(k_p[kept].max()):
        notes.append(f"{base.pool.spec.task}: k = {k:,} was asked for, both sides have {_span(k_p[kept])} draws")
    if any(limit_p is not None for limit_p in limits):
        notes.append(
            f"{base.pool.spec.task}: the base has {_span(n_base[kept])} draws per problem, the policy "
            f"{_span(n_policy[kept])}: support, entropies and majority are of the first {_span(k_p[kept])} of each, "
            "pass@k is of all"
        )
    arms = [
        _arm(reader.all, counted, counted, kept, None) for reader, counted in zip((base, policy), tallies, strict=True)
    ]
    return _paired(base, kept, arms, tallies[0], None, int(k_p[kept].min()), limits, notes)


def _limit(reader: Reader, k_p: Ints) -> Ints | None:
    """The index below which each problem has its first `k_p` draws; None if those are all it has."""
    n_p = reader.all.hits.n_p
    if np.array_equal(n_p, k_p):
        return None
    if bool(np.all(n_p == reader.pool.spec.k)):
        return k_p
    limits = []
    for k, missing in zip(k_p.tolist(), reader.pool.missing(), strict=True):
        # A missing draw lies before the k-th drawn one exactly when fewer than k were drawn before it.
        limits.append(k + int(np.searchsorted(missing - np.arange(len(missing)), k)) if k else 0)
    return np.array(limits)


def _pair_stopped(base: Reader, policy: Reader, kept: Ints, k: int | None) -> Paired:
    readers = (base, policy)
    successes = min(reader.successes for reader in readers if reader.successes is not None)
    cap = min(int(reader.reach(successes)[kept].min()) for reader in readers)
    plan = Stop(successes, cap if k is None else min(cap, k))
    if plan.cap < 1:
        raise PoolError(f"{base.pool.path} or {policy.pool.path} lacks a problem's first draw: finish drawing them")
    limits = [reader.stop(plan) for reader in readers]
    # What stops on a success is biased towards it, so these are of the draws that every problem has.
    rows_k = int(min(limit_p[kept].min() for limit_p in limits))
    same = np.full(len(limits[0]), rows_k)
    arms, cut = [], [reader.first(limit_p) for reader, limit_p in zip(readers, limits, strict=True)]
    for reader, counted in zip(readers, cut, strict=True):
        own = None
        every = reader.all
        if reader.successes is not None:
            own = Stop(reader.successes, int(reader.reach(reader.successes)[kept].min()))
            every = reader.first(reader.stop(own))
        arms.append(_arm(every, counted, reader.first(same), kept, own))
    notes = [
        f"{base.pool.spec.task}: compared under the plan until {plan.successes} successes, at most {plan.cap} draws; "
        f"rates, entropies and majority are of the first {rows_k} draws of every problem"
    ]
    if len(cut[0].hits.unit_problem) > len(cut[0].hits.n_p):
        notes.append(
            f"{base.pool.spec.task}: support is of problems only. The plan stops a problem at its {plan.successes} "
            "correct samples and does not look for its other answers: draw with a fixed plan to count those"
        )
    return _as_units(_paired(base, kept, arms, cut[0], plan, rows_k, limits, notes))


def _as_units(paired: Paired) -> Paired:
    """Each problem as one unit, which any correct answer hits."""
    base, policy = (replace(arm, hits_u=arm.correct_p) for arm in (paired.base, paired.policy))
    count = len(paired.kept)
    return replace(paired, unit_problem=np.arange(count), unit_answer=(None,) * count, base=base, policy=policy)


def _arm(every: Tally, counted: Tally, rows: Tally, kept: Ints, plan: Stop | None) -> Arm:
    is_kept = np.zeros(len(every.hits.n_p), bool)
    is_kept[kept] = True
    return Arm(
        n_p=counted.hits.n_p[kept],
        correct_p=counted.hits.correct_p[kept],
        hits_u=counted.hits.unit_hits[is_kept[counted.hits.unit_problem]],
        all_n_p=every.hits.n_p[kept],
        all_correct_p=every.hits.correct_p[kept],
        plan=plan,
        values={name: value_p[kept] for name, value_p in _values(rows).items()},
    )


def _values(rows: Tally) -> dict[str, Floats]:
    plain_p, corrected_p = rows.answer_entropies()
    return {
        "avg": rows.accuracy(),
        "majority": rows.majority(),
        "answer_entropy": plain_p,
        "answer_entropy_corrected": corrected_p,
        **{name: rows.mean(name) for name in VALUES},
        **{status: rows.status_share(status) for status in ("no_answer", "truncated", "timeout", "error")},
    }


def _paired(
    base: Reader,
    kept: Ints,
    arms: Sequence[Arm],
    counted: Tally,
    plan: Stop | None,
    rows_k: int,
    limits: Sequence[Ints | None],
    notes: Sequence[str],
) -> Paired:
    hits, task = counted.hits, base.pool.spec.task
    place = np.full(len(hits.problem_ids), -1)
    place[kept] = np.arange(len(kept))
    of_kept = np.flatnonzero(place[hits.unit_problem] >= 0)
    metas = [base.pool.problems[i].meta for i in kept]
    every = np.full(len(hits.problem_ids), np.iinfo(np.int64).max)
    base_limit_p, policy_limit_p = (every if limit_p is None else limit_p for limit_p in limits)
    return Paired(
        task=task,
        kept=kept,
        domain_p=[str(meta.get("domain") or meta.get("subject") or task) for meta in metas],
        unit_problem=place[hits.unit_problem[of_kept]],
        unit_answer=tuple(hits.unit_answer[i] for i in of_kept),
        base=arms[0],
        policy=arms[1],
        plan=plan,
        rows_k=rows_k,
        base_limit_p=base_limit_p,
        policy_limit_p=policy_limit_p,
        notes=tuple(notes),
    )


def _first(flag_pk: NDArray[np.bool_]) -> Ints:
    """The place of the first True of each row; the length of a row that has none."""
    return np.where(flag_pk.any(axis=1), flag_pk.argmax(axis=1), flag_pk.shape[1])


def _span(n_p: Ints) -> str:
    low, high = int(n_p.min()), int(n_p.max())
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"
