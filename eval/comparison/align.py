"""Two pools of one task side by side, as arrays over problems and units, with the scores they hold.

Support grows with the number of draws, and the plug-in entropy, majority and cover depend on it too: they are only
compared at equal budgets, k being the smaller of a problem's two. Of fixed plans every draw is used all the same: what
k draws would show is an expectation over the k-subsets of all of them (`stats.subsets`), so the order of the draws
decides nothing. What does not depend on the number of draws (pass@k, accuracy, lengths, rates) is of all.

A plan that stops at r successes says less about a problem than it drew: both pools are cut to the same plan, the
smaller r and the smaller cap, which is exact for any pool that holds those draws (`stats.stopping`). Such a plan asks
whether a problem is solved, not which of its answers are reached: a problem is one unit then.

Scores of `offleash score` replace what was recorded while drawing, all of it or nothing: numbers of one cell are
measured one way. A model is identified by the fingerprint of its weights, never by a name. So a base's pool and a
policy's, each scored under both models, give four perplexities: those of the paper's Table 2, of the models' own
completions.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from offleash.eval.convert.importer import ENGINE
from offleash.eval.errors import PoolError
from offleash.eval.pool.counts import STATUSES, VALUES, Hits, Tally
from offleash.eval.pool.ledger import Ledger
from offleash.eval.pool.pool import Pool
from offleash.eval.pool.spec import MAX_K
from offleash.eval.pool.spellings import Spelled, match_spellings
from offleash.eval.scoring.score_folder import ScoreFolder, ScoreRows, find_scores
from offleash.eval.scoring.summary import problem_means
from offleash.eval.stats.diversity import effective_answers
from offleash.eval.stats.passk import TAUS, cover_at_tau, pass_at_k
from offleash.eval.stats.stopping import stopped_pass_at_k

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Stop(NamedTuple):
    """A plan: at most `cap` draws, done at `successes` correct ones."""

    successes: int
    cap: int


class Reader:
    """A pool read at most once per set of draws."""

    def __init__(self, pool: Pool, note: Callable[[str], None] | None = None) -> None:
        self.pool, self.note = pool, note
        self.successes = pool.spec.plan.successes

    @cached_property
    def all(self) -> Tally:
        return self.pool.tally(note=self.note)

    def first(self, limit_p: Ints) -> Tally:
        """Of the draws with an index below each problem's limit."""
        return self.pool.tally(limit_p, self.note)

    @cached_property
    def spelled(self) -> Spelled | None:
        return self.pool.spelled()

    @cached_property
    def ledger(self) -> Ledger:
        return Ledger(self.pool)


@dataclass(frozen=True, slots=True, eq=False)
class Arm:
    """One side of an aligned task, over the problems kept."""

    pool: Pool
    hits: Hits
    """Of all its draws, or of those that the common plan takes."""
    limit_p: Ints
    """Over all problems of the pool: these draws have an index below it."""
    all_n_p: Ints
    all_correct_p: Ints
    plan: Stop | None
    """Its own plan, with all its draws; None if that is a fixed one."""
    values: dict[str, Floats]
    """Per problem: what a contrast is made of, see `_values`."""

    def curve(self, ks: Sequence[int]) -> Floats:
        """Unbiased pass@k: [p, k]."""
        if self.plan is None:
            return pass_at_k(self.all_correct_p, self.all_n_p, ks)
        return stopped_pass_at_k(self.all_n_p, self.all_correct_p, ks, **self.plan._asdict())


@dataclass(frozen=True, slots=True, eq=False)
class Aligned:
    """One task on both sides, over the problems that both have draws of."""

    task: str
    kept: Ints
    """Indices of these problems among the pool's."""
    domain_p: list[str]
    base: Arm
    policy: Arm
    plan: Stop | None
    """The plan both were cut to; None if both are fixed."""
    k_p: Ints
    """Draws a side at which each problem is compared; of a plan that stops early its cap."""
    rows_k: int
    """Draws that majority, plug-in entropy and cover are about, the fewest where they differ."""
    notes: tuple[str, ...]
    spelled: tuple[Spelled, Spelled] | None = None
    """Base and policy over the spellings that either has; None if spellings are not told apart."""

    @property
    def unit_problem(self) -> Ints:
        """Index into the problems kept."""
        return self.base.hits.unit_problem


def align(base: Reader, policy: Reader, k: int | None = None) -> Aligned:
    """Two pools of the same problems, to be compared at the same number of draws, at most `k` of each problem."""
    if k is not None and not 1 <= k <= MAX_K:
        raise PoolError(f"k must be at least 1 and at most {MAX_K:,}, got {k}")
    n_base, n_policy = base.all.hits.n_p, policy.all.hits.n_p
    kept = np.flatnonzero((n_base > 0) & (n_policy > 0))
    if not len(kept):
        raise PoolError(f"{base.pool.path} and {policy.pool.path} have no problem with draws on both sides")
    if base.successes is None and policy.successes is None:
        return _add_scores(_align_fixed(base, policy, kept, k))
    return _add_scores(_align_stopped(base, policy, kept, k))


def _align_fixed(base: Reader, policy: Reader, kept: Ints, k: int | None) -> Aligned:
    task, n_base, n_policy = base.pool.spec.task, base.all.hits.n_p, policy.all.hits.n_p
    all_k_p = np.minimum(n_base, n_policy)
    all_k_p = all_k_p if k is None else np.minimum(all_k_p, k)
    k_p = all_k_p[kept]
    notes = []
    if k is not None and k > int(k_p.max()):
        notes.append(f"{task}: k = {k:,} was asked for, both sides have {_span(k_p)} draws")
    if np.any(n_base[kept] > k_p) or np.any(n_policy[kept] > k_p):
        notes.append(
            f"{task}: the base has {_span(n_base[kept])} draws per problem, the policy {_span(n_policy[kept])}: "
            f"support, majority, plug-in entropy and cover are what {_span(k_p)} of them show on average, over all "
            "subsets; everything else is of all draws"
        )
    unlimited_p = np.full(len(n_base), np.iinfo(np.int64).max)
    of_base, of_policy = (
        _arm(one, one.all, one.all.hits, _values(one.all, unrecorded(one), all_k_p), unlimited_p, kept, None)
        for one in (base, policy)
    )
    sides = (_domains(base.pool, kept), of_base, of_policy)
    return Aligned(task, kept, *sides, None, k_p, int(k_p.min()), tuple(notes), _spelled(base, policy, kept))


def _spelled(base: Reader, policy: Reader, kept: Ints) -> tuple[Spelled, Spelled] | None:
    if base.spelled is None or policy.spelled is None:
        return None
    one, other = match_spellings(base.spelled, policy.spelled)
    return _spelled_of_problems(one, kept), _spelled_of_problems(other, kept)


def _spelled_of_problems(side: Spelled, kept: Ints) -> Spelled:
    units = np.flatnonzero(np.isin(side.hits.unit_problem, kept))
    return Spelled(_of_problems(side.hits, kept), tuple(side.answer_u[u] for u in units))


def _align_stopped(base: Reader, policy: Reader, kept: Ints, k: int | None) -> Aligned:
    task, readers = base.pool.spec.task, (base, policy)
    successes = min(reader.successes for reader in readers if reader.successes is not None)
    cap = min(int(reader.ledger.reach_p(successes)[kept].min()) for reader in readers)
    plan = Stop(successes, cap if k is None else min(cap, k))
    if plan.cap < 1:
        raise PoolError(f"{base.pool.path} or {policy.pool.path} lacks a problem's first draw: finish drawing them")
    limits = [reader.ledger.stop_p(*plan) for reader in readers]
    # Draws that end at a success are biased towards it, so these values are of the draws that the plan always takes.
    rows_k = min(plan)
    same_p = np.full(len(limits[0]), rows_k)
    arms = []
    for reader, limit_p in zip(readers, limits, strict=True):
        own, every = None, reader.all
        if reader.successes is not None:
            own = Stop(reader.successes, int(reader.ledger.reach_p(reader.successes)[kept].min()))
            every = reader.first(reader.ledger.stop_p(*own))
        hits, values = reader.first(limit_p).hits, _values(reader.first(same_p), unrecorded(reader))
        arms.append(_arm(reader, every, as_one_unit(hits), values, limit_p, kept, own))
    notes = [
        f"{task}: compared under the plan until {plan.successes} successes, at most {plan.cap} draws; "
        f"rates, entropies and majority are of the first {rows_k} draws of every problem"
    ]
    if len(base.all.hits.unit_problem) > len(base.all.hits.n_p):
        notes.append(
            f"{task}: support is of problems only. The plan stops a problem at its {plan.successes} "
            "correct samples and does not look for its other answers: draw with a fixed plan to count those"
        )
    k_p = np.full(len(kept), plan.cap)
    return Aligned(task, kept, _domains(base.pool, kept), arms[0], arms[1], plan, k_p, rows_k, tuple(notes))


def _arm(
    reader: Reader,
    every: Tally,
    hits: Hits,
    values: dict[str, Floats],
    limit_p: Ints,
    kept: Ints,
    plan: Stop | None,
) -> Arm:
    """`every` is of the draws behind pass@k."""
    return Arm(
        pool=reader.pool,
        hits=_of_problems(hits, kept),
        limit_p=limit_p,
        all_n_p=every.hits.n_p[kept],
        all_correct_p=every.hits.correct_p[kept],
        plan=plan,
        values={name: value_p[kept] for name, value_p in values.items()},
    )


def _of_problems(hits: Hits, kept: Ints) -> Hits:
    """The hits of some problems, `kept` ascending."""
    place = np.full(len(hits.problem_ids), -1)
    place[kept] = np.arange(len(kept))
    units = np.flatnonzero(place[hits.unit_problem] >= 0)
    return Hits(
        problem_ids=tuple(hits.problem_ids[p] for p in kept),
        n_p=hits.n_p[kept],
        correct_p=hits.correct_p[kept],
        unit_problem=place[hits.unit_problem[units]],
        unit_answer=tuple(hits.unit_answer[u] for u in units),
        unit_hits=hits.unit_hits[units],
    )


def as_one_unit(hits: Hits) -> Hits:
    """Each problem as one unit, which any correct answer hits."""
    count = len(hits.problem_ids)
    return replace(hits, unit_problem=np.arange(count), unit_answer=(None,) * count, unit_hits=hits.correct_p)


def unrecorded(reader: Reader) -> list[str]:
    """Statuses that an imported pool never has: nobody may have looked, so their share is not known to be 0."""
    spec, counts = reader.pool.spec, reader.all.status_ps.sum(axis=0)
    if spec.engine != ENGINE:
        return []
    recorded = spec.versions.get(ENGINE, "").split()
    unsaid = [status for status in ("truncated", "timeout", "error") if status not in recorded]
    return [status for status in unsaid if not counts[STATUSES.index(status)]]


def _values(rows: Tally, absent: Sequence[str], k_p: Ints | None = None) -> dict[str, Floats]:
    """Of all draws counted; what depends on their number is that expected of `k_p` of them."""
    plain_p, corrected_p = rows.answer_entropies(k_p)
    known = [status for status in ("no_answer", "truncated", "timeout", "error") if status not in absent]
    return {
        "avg": rows.accuracy(),
        "majority": rows.majority(k_p),
        "answer_entropy": plain_p,
        "answer_entropy_corrected": corrected_p,
        "effective_answers": effective_answers(corrected_p),
        "pcmd": rows.pcmd(),
        **dict(zip(("unseen", "unseen_correct"), rows.unseen(k_p), strict=True)),
        **{f"cover_{tau}": cover_at_tau(rows.hits.correct_p, rows.hits.n_p, tau, k_p) for tau in TAUS},
        **{name: rows.mean(name) for name in VALUES},
        **{status: np.full(len(plain_p), np.nan) for status in absent},
        **{status: rows.status_share(status) for status in known},
    }


def _domains(pool: Pool, kept: Ints) -> list[str]:
    metas = [pool.problems[p].meta for p in kept]
    return [str(meta.get("domain") or meta.get("subject") or pool.spec.task) for meta in metas]


def _span(n_p: Ints) -> str:
    low, high = int(n_p.min()), int(n_p.max())
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


class _Scored(NamedTuple):
    """The scores of a pool's completions under one model, and those of the draws that are compared."""

    folder: ScoreFolder
    rows: ScoreRows
    problems: int

    def means(self, value_s: Floats) -> Floats:
        return problem_means(self.rows.problem_r, value_s, self.problems)


class _ArmScores(NamedTuple):
    """One pool's completions under the model that drew them and under the other; None is not scored."""

    own: _Scored | None
    other: _Scored | None

    @property
    def used(self) -> list[_Scored]:
        return list({one.folder.path: one for one in self if one is not None}.values())


def _add_scores(found: Aligned) -> Aligned:
    """With the scores that the two pools hold."""
    base, policy = found.base, found.policy
    # As for rates and entropies: draws that end at a success are biased towards it.
    limits = [arm.limit_p if found.plan is None else np.full(len(arm.limit_p), found.rows_k) for arm in (base, policy)]
    of_base = _arm_scores(base.pool, policy.pool, limits[0])
    of_policy = _arm_scores(policy.pool, base.pool, limits[1])
    policy = _with_scores(policy, found.kept, of_policy, "base_nll")
    return replace(
        found,
        base=_with_scores(base, found.kept, of_base, "policy_nll"),
        policy=_with_kl(policy, found.kept, of_policy),
        notes=(*found.notes, *_score_notes(found, of_base, of_policy)),
    )


def _arm_scores(pool: Pool, other: Pool, limit_p: Ints) -> _ArmScores:
    folders = list(find_scores(pool))
    return _ArmScores(*(_under(folders, weights, limit_p) for weights in (pool.spec.weights, other.spec.weights)))


def _under(folders: Sequence[ScoreFolder], weights: str, limit_p: Ints) -> _Scored | None:
    """If scored more than once, temperature 1 comes first."""
    fitting = [folder for folder in folders if folder.spec.weights == weights]
    if not fitting:
        return None
    folder = min(fitting, key=lambda folder: (folder.spec.temperature != 1, folder.name))
    rows = folder.read()
    rows = rows.where(np.isfinite(rows.logprob_r) & (rows.index_r < limit_p[rows.problem_r]))
    return _Scored(folder, rows, len(limit_p)) if len(rows.index_r) else None


def _with_scores(arm: Arm, kept: Ints, scores: _ArmScores, other_name: str) -> Arm:
    values = dict(arm.values)
    if scores.own is not None:
        values["token_entropy"] = scores.own.means(scores.own.rows.entropy_r)[kept]
        values["nll"] = scores.own.means(scores.own.rows.nll_r)[kept]
    if scores.other is not None:
        values[other_name] = scores.other.means(scores.other.rows.nll_r)[kept]
    return replace(arm, values=values)


def _with_kl(arm: Arm, kept: Ints, scores: _ArmScores) -> Arm:
    """log p - log p_base averages to the KL only over draws of the very p that was scored."""
    spec, own, base = arm.pool.spec, scores.own, scores.other
    if own is None or base is None or not spec.untruncated:
        return arm
    one, other = own.folder.spec, base.folder.spec
    if one.template != other.template or not one.temperature == other.temperature == spec.temperature:
        return arm
    key, base_key = (scored.rows.problem_r * spec.k + scored.rows.index_r for scored in (own, base))
    _, i, j = np.intersect1d(key, base_key, assume_unique=True, return_indices=True)
    kl_s = own.rows.logprob_r[i] - base.rows.logprob_r[j]
    kl_p = problem_means(own.rows.problem_r[i], kl_s, own.problems)
    return replace(arm, values={**arm.values, "kl_base_k1": kl_p[kept]})


def _score_notes(found: Aligned, base: _ArmScores, policy: _ArmScores) -> list[str]:
    arms = {"base": base, "policy": policy}
    notes = [_score_note(found.task, side, scored) for side, scores in arms.items() for scored in scores.used]
    temperatures = {scored.folder.spec.temperature for scores in arms.values() for scored in scores.used}
    if len(temperatures) > 1:
        words = " and ".join(f"{t:g}" for t in sorted(temperatures))
        notes.append(f"{found.task}: NOT COMPARABLE: scores at temperatures {words}; score all at one")
    unscored = [side for side, scores in arms.items() if scores.own is None]
    if len(unscored) == 1 and np.isfinite(getattr(found, unscored[0]).values["nll"]).any():
        notes.append(
            f"{found.task}: NOT COMPARABLE: the {unscored[0]}'s own token entropy and perplexity are as recorded while "
            "drawing (sampling temperature and truncation), the other side's are scored; score both"
        )
    return notes


def _score_note(task: str, side: str, scored: _Scored) -> str:
    folder, rows = scored.folder, scored.rows
    known = int(np.isfinite(rows.drawn_r).sum())
    other = f"; {int(rows.retokenized_r.sum()):,} of {known:,} in another number of tokens than drawn" if known else ""
    return (
        f"{task}: {len(rows.index_r):,} of the {side}'s completions scored under {folder.name} at temperature "
        f"{folder.spec.temperature:g}{other}"
    )
