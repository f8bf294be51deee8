"""Every number of a comparison over one set of problems: all of them, a task's or a domain's.

Problems come as parts of tasks, each task's two pools aligned (`comparison.align`); they are put side by side here and
handed to the estimators. Resampling is over problems with base and policy kept together, as everywhere.
"""

import math
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from offleash.eval.comparison.align import Aligned, Arm
from offleash.eval.comparison.result import (
    Contrast,
    Curves,
    Level,
    Noise,
    Perplexity,
    Scope,
    Sensitivity,
    Spellings,
    Support,
)
from offleash.eval.pool.counts import Hits
from offleash.eval.pool.spellings import respelled
from offleash.eval.stats.beta_binomial import Rates
from offleash.eval.stats.curves import CORNER_WEIGHT, CORNERS, DIFFERENCE_CORNER_WEIGHT, compare_curves
from offleash.eval.stats.intervals import Estimate, interval, weighted_means
from offleash.eval.stats.noise import Excess, NoiseTest, noise_test
from offleash.eval.stats.passk import budgets
from offleash.eval.stats.posterior import posterior_dynamics
from offleash.eval.stats.stopping import stopped_noise_test
from offleash.eval.stats.subsets import expected_cells
from offleash.eval.stats.support import (
    CELLS,
    STABLE_HITS,
    bootstrap_dynamics,
    cells_of,
    detection_limit,
    detection_limit_exact,
    dynamics_above,
    expected_metrics,
)

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

ROWS: dict[str, str] = {
    "avg": "accuracy",
    "majority": "majority@k",
    "tokens": "response length (tokens)",
    "token_entropy": "token entropy (nats)",
    "answer_entropy": "answer entropy, plug-in (nats)",
    "answer_entropy_corrected": "answer entropy, corrected (nats)",
    "effective_answers": "effective number of answers",
    "pcmd": "two correct answers differ (PCMD)",
    "unseen": "unseen answers (Good-Turing)",
    "unseen_correct": "unseen correct answers (Good-Turing)",
    "cover_0.2": "cover@0.2",
    "cover_0.8": "cover@0.8",
    "no_answer": "no answer",
    "truncated": "truncated",
    "timeout": "timed out (wrong)",
    "error": "verifier error",
    "kl_base_k1": "KL to the base, k1 (nats)",
}
"""Key of `Scope.rows` -> its name: the paper's Table 5, and the rates of samples without a verdict."""

PROBLEM_SHARES = ("avg", "majority", "cover_0.2", "cover_0.8")
"""Those of ROWS that are rates of whole problems."""
SHARES = (*PROBLEM_SHARES, "no_answer", "truncated", "timeout", "error")
"""Those of ROWS that lie between 0 and 1."""

_PERPLEXITIES: tuple[tuple[Literal["base", "policy"], Literal["itself", "base", "policy"], str], ...] = (
    ("base", "itself", "nll"),
    ("base", "policy", "policy_nll"),
    ("policy", "itself", "nll"),
    ("policy", "base", "base_nll"),
)
_POSTERIOR_SAMPLES = 500

_PSEUDO = np.vstack(
    [np.c_[CORNERS, CORNERS @ [-1, 1]], np.c_[np.full((4, 2), np.nan), CORNERS @ [-1, 1]]]  # base, policy, difference
)
_PSEUDO_WEIGHTS = np.repeat([CORNER_WEIGHT, DIFFERENCE_CORNER_WEIGHT - CORNER_WEIGHT], 4)


class Settings(NamedTuple):
    """Of the intervals, and how many units lost and gained to show."""

    confidence: float = 0.95
    resamples: int = 2000
    seed: int = 0
    examples: int = 10


class _Resampling(NamedTuple):
    """Arguments of every bootstrap."""

    rng: np.random.Generator
    confidence: float
    resamples: int


class Part(NamedTuple):
    """Some problems of one task."""

    aligned: Aligned
    chosen_p: NDArray[np.bool_]

    def problems(self, take: Callable[[Arm], NDArray]) -> tuple[NDArray, NDArray]:
        """A column over problems, of base and policy."""
        return take(self.aligned.base)[self.chosen_p], take(self.aligned.policy)[self.chosen_p]

    @property
    def chosen_u(self) -> NDArray[np.bool_]:
        return self.chosen_p[self.aligned.unit_problem]


class _Hits(NamedTuple):
    """Units, or problems as if they were units: hits and draws of both sides, the problem each belongs to, and the
    draws a side at which it is compared."""

    base: Ints
    policy: Ints
    n_base: Ints
    n_policy: Ints
    problem: Ints
    k: Ints


def measure_scope(name: str, parts: Sequence[Part], settings: Settings) -> Scope:
    rng = np.random.default_rng([settings.seed, zlib.crc32(name.encode(errors="surrogatepass"))])
    how = _Resampling(rng, settings.confidence, settings.resamples)
    parts = [part for part in parts if part.chosen_p.any()]
    problems, units = [_problem_hits(part) for part in parts], [_unit_hits(part) for part in parts]
    k_p = np.concatenate([part.aligned.k_p[part.chosen_p] for part in parts])
    levels = [_level(parts, hits, int(k_p.min()), how) for hits in (units, problems)]
    curves, rows = _curves(parts, how), _rows(parts, how)
    if all(part.aligned.base.plan is None and part.aligned.policy.plan is None for part in parts):
        # pass@1 under another name, so with the same intervals; of a plan that stops early it is of fewer draws.
        rows["avg"] = Contrast(curves.base[0], curves.policy[0], _negative(curves.difference[0]))
    return Scope(
        name=name,
        problems=len(k_p),
        one_unit=all(_is_one_unit(part) for part in parts),
        k_min=int(k_p.min()),
        k_max=int(k_p.max()),
        cut=any(_is_cut(part) for part in parts),
        n_min=min(_largest_k(part, side) for part in parts for side in ("base", "policy")),
        units=levels[0],
        problem_level=levels[1],
        curves=curves,
        rows_k=min(part.aligned.rows_k for part in parts),
        rows=rows,
        perplexity=tuple(_perplexities(parts, problems, how)),
        spellings=_spellings(parts, int(k_p.min()), how),
    )


def sensitivity(parts: Sequence[Part], settings: Settings) -> list[Sensitivity]:
    """Units at thresholds 1/2, 1/4, ... down to half a hit; empty for adaptive plans, which stop counting hits."""
    if any(part.aligned.plan is not None for part in parts):
        return []
    rng = np.random.default_rng([settings.seed, 1])
    hits = _joined([_unit_hits(part) for part in parts])
    if not len(hits.base):
        return []
    k = int(min(hits.n_base.min(), hits.n_policy.min()))
    thresholds = [2.0**-j for j in range(k.bit_length(), 0, -1)]
    columns = (hits.base, hits.policy, hits.n_base, hits.n_policy)
    posterior = posterior_dynamics(
        *columns, thresholds, hits.problem, rng=rng, confidence=settings.confidence, resamples=_POSTERIOR_SAMPLES
    )
    noise = _noise_above(hits, thresholds)
    return [
        Sensitivity(eps, dynamics_above(*columns, eps), of_eps, expected)
        for eps, of_eps, expected in zip(thresholds, posterior, noise, strict=True)
    ]


def _noise_above(hits: _Hits, thresholds: Sequence[float]) -> list[dict[str, float]]:
    """The metrics that a second sample of the base, of the policy's size, is expected to show at each threshold."""
    if hits.n_base.max() < 2:
        return [expected_metrics(math.nan, math.nan, math.nan)] * len(thresholds)
    rates = Rates.fitted(hits.base, hits.n_base)
    out_tu = np.empty((len(thresholds), len(hits.base)))
    for n in np.unique(hits.n_policy).tolist():
        at = hits.n_policy == n
        least = [math.floor(eps * n) + 1 for eps in thresholds]
        out_tu[:, at] = rates.fewer_than_each(n, least)[:, at]
    found = []
    for eps, out_u in zip(thresholds, out_tu, strict=True):
        in_base = hits.base > eps * hits.n_base
        lost, gained = float(out_u[in_base].sum()), float((1 - out_u[~in_base]).sum())
        found.append(expected_metrics(float(in_base.sum()), lost, gained))
    return found


def joined_hits(parts: Sequence[Part], level: Literal["unit", "problem"]) -> _Hits:
    """Of all parts, one after another."""
    return _joined([(_unit_hits if level == "unit" else _problem_hits)(part) for part in parts])


def _is_cut(part: Part) -> bool:
    n_base, n_policy = part.problems(lambda arm: arm.hits.n_p)
    k = part.aligned.k_p[part.chosen_p]
    return part.aligned.plan is None and bool(np.any(n_base > k) or np.any(n_policy > k))


def _is_one_unit(part: Part) -> bool:
    return np.array_equal(part.aligned.unit_problem[part.chosen_u], np.flatnonzero(part.chosen_p))


def _problem_hits(part: Part) -> _Hits:
    correct, draws = part.problems(lambda arm: arm.hits.correct_p), part.problems(lambda arm: arm.hits.n_p)
    return _Hits(*correct, *draws, np.arange(len(correct[0])), part.aligned.k_p[part.chosen_p])


def _unit_hits(part: Part) -> _Hits:
    return _of_units(part, part.aligned.base.hits, part.aligned.policy.hits, part.chosen_u)


def _of_units(part: Part, base: Hits, policy: Hits, chosen_u: NDArray[np.bool_]) -> _Hits:
    problem_u = base.unit_problem[chosen_u]
    hits = (base.unit_hits[chosen_u], policy.unit_hits[chosen_u])
    return _Hits(*hits, base.n_p[problem_u], policy.n_p[problem_u], problem_u, part.aligned.k_p[problem_u])


def _spellings(parts: Sequence[Part], k: int, how: _Resampling) -> Spellings | None:
    told = [part for part in parts if part.aligned.spelled is not None]
    if not told:
        return None
    hits, lost, kept = [], 0, 0
    for part in told:
        assert part.aligned.spelled is not None
        base, policy = part.aligned.spelled
        chosen_u = part.chosen_p[base.hits.unit_problem]
        lost += int(np.sum((base.hits.unit_hits > 0) & (policy.hits.unit_hits == 0) & chosen_u))
        kept += int(np.sum(respelled(base, policy) & chosen_u))
        hits.append(_of_units(part, base.hits, policy.hits, chosen_u))
    return Spellings(_without_expectation(_level(told, hits, k, how)), lost, kept)


def _without_expectation(level: Level) -> Level:
    """What noise alone would show is not known where the units that nobody sampled are not listed; the tests hold."""

    def known(noise: Noise) -> Noise:
        return replace(noise, expected=math.nan, excess=math.nan)

    def of(support: Support) -> Support:
        return replace(support, shrunk=known(support.shrunk), expanded=known(support.expanded))

    return replace(level, any_hit=of(level.any_hit), stable=None if level.stable is None else of(level.stable))


def _joined(parts: Sequence[_Hits]) -> _Hits:
    """One after another, with distinct problem numbers across parts."""
    starts = np.cumsum([0, *(int(hits.problem.max(initial=0)) + 1 for hits in parts)])
    moved = [hits._replace(problem=hits.problem + start) for hits, start in zip(parts, starts[:-1], strict=True)]
    return _Hits(*(np.concatenate(columns) for columns in zip(*moved, strict=True)))


def _level(parts: Sequence[Part], hits: Sequence[_Hits], k: int, how: _Resampling) -> Level:
    joined = _joined(hits)
    # A plan that stops at r successes cannot distinguish more than r hits.
    largest = min((part.aligned.plan.successes for part in parts if part.aligned.plan is not None), default=STABLE_HITS)
    thresholds = [1, STABLE_HITS] if largest >= STABLE_HITS else [1]
    supports = [_support(parts, hits, joined, threshold, k, how) for threshold in thresholds]
    return Level(len(joined.base), supports[0], supports[1] if len(supports) > 1 else None)


def _support(
    parts: Sequence[Part], hits: Sequence[_Hits], joined: _Hits, threshold: int, k: int, how: _Resampling
) -> Support:
    test = _noise(parts, hits, joined, threshold)
    return Support(
        threshold=threshold,
        estimates=bootstrap_dynamics(_cells(parts, hits, threshold), joined.problem, **how._asdict()),
        shrunk=_as_noise(test and test.shrunk),
        expanded=_as_noise(test and test.expanded),
        detection_limit=detection_limit(k) if threshold == 1 else detection_limit_exact(k, hits=min(threshold - 1, k)),
    )


def _cells(parts: Sequence[Part], hits: Sequence[_Hits], threshold: int) -> Floats:
    """[units, 4]: each unit as P, S, E and O, all parts one after another."""
    return np.concatenate(
        [
            expected_cells(h.base, h.policy, h.n_base, h.n_policy, h.k, threshold)
            if part.aligned.plan is None
            else cells_of(h.base >= threshold, h.policy >= threshold)
            for part, h in zip(parts, hits, strict=True)
        ]
    )


def _noise(parts: Sequence[Part], hits: Sequence[_Hits], joined: _Hits, threshold: int) -> NoiseTest | None:
    """None where no test is known: an adaptive plan and several units per problem, or unequal budgets beside it."""
    plans = [part.aligned.plan for part in parts]
    whole = np.array_equal(joined.k, joined.n_base) and np.array_equal(joined.k, joined.n_policy)
    if not any(plans):
        return noise_test(*joined[:5], threshold, k=None if whole else joined.k)
    fixed = [h for plan, h in zip(plans, hits, strict=True) if plan is None]
    cut = any(np.any(h.n_base != h.n_policy) or np.any(h.k != h.n_base) for h in fixed)
    if cut or len(np.unique(joined.problem)) < len(joined.problem):
        return None
    # A fixed plan is one that stops at more successes than it has draws.
    stops = [
        (np.full(len(h.base), plan.successes), np.full(len(h.base), plan.cap))
        if plan
        else (np.maximum(h.n_base + 1, threshold), h.n_base)
        for plan, h in zip(plans, hits, strict=True)
    ]
    successes_u, cap_u = (np.concatenate(column) for column in zip(*stops, strict=True))
    base, policy = (joined.n_base, joined.base), (joined.n_policy, joined.policy)
    return stopped_noise_test(base, policy, successes=successes_u, cap=cap_u, threshold=threshold)


def _as_noise(side: Excess | None) -> Noise:
    if side is None:
        return Noise(math.nan, math.nan, math.nan, math.nan, ())
    return Noise(side.expected, side.excess, side.p, side.p_strength, tuple(np.flatnonzero(side.sure_u).tolist()))


def _curves(parts: Sequence[Part], how: _Resampling) -> Curves:
    largest = [min(_largest_k(part, side) for part in parts) for side in ("base", "policy")]
    ks = sorted({*budgets(min(largest)), *budgets(max(largest))})
    base_pk = np.concatenate([part.aligned.base.curve(ks)[part.chosen_p] for part in parts])
    policy_pk = np.concatenate([part.aligned.policy.curve(ks)[part.chosen_p] for part in parts])
    curves = compare_curves(base_pk, policy_pk, ks, **how._asdict())
    return Curves(tuple(ks), tuple(curves.base), tuple(curves.policy), tuple(curves.difference), tuple(curves.leads))


def _largest_k(part: Part, side: str) -> int:
    arm: Arm = getattr(part.aligned, side)
    return int(arm.all_n_p[part.chosen_p].min()) if arm.plan is None else arm.plan.cap


def _rows(parts: Sequence[Part], how: _Resampling) -> dict[str, Contrast]:
    """Means over problems with intervals. One set of weights for all rows; a problem counts where a value is known."""
    columns: list[Floats] = []
    pseudo: list[Floats] = []
    for name in ROWS:
        base_p, policy_p = _joined_values(parts, name)
        columns += [base_p, policy_p, policy_p - base_p]
        # As in `stats.curves`: pseudo-problems in the corners keep a rate of 0 from being certain. Of failures only if
        # none (or nothing else) was seen: they come in a few draws, not in whole problems.
        known = name in PROBLEM_SHARES or (name in SHARES and _is_constant(base_p, policy_p))
        pseudo += list(_PSEUDO.T) if known else [np.full(len(_PSEUDO), np.nan)] * 3
    estimates = _mean_estimates(np.stack(columns, 1), np.stack(pseudo, 1), _PSEUDO_WEIGHTS, how)
    return {name: Contrast(*estimates[3 * i : 3 * i + 3]) for i, name in enumerate(ROWS)}


def _negative(e: Estimate) -> Estimate:
    return Estimate(-e.value, -e.high, -e.low, e.n)


def _is_constant(base_p: Floats, policy_p: Floats) -> bool:
    both = np.concatenate([base_p, policy_p])
    return bool(np.all(both == 0) or np.all(both == 1))


def _joined_values(parts: Sequence[Part], name: str) -> tuple[Floats, Floats]:
    pairs = [part.problems(lambda arm: arm.values[name]) for part in parts]
    return np.concatenate([one for one, _ in pairs]), np.concatenate([other for _, other in pairs])


def _mean_estimates(
    rows_pc: Floats, pseudo_rc: Floats, pseudo_r: Floats, how: _Resampling, share_pc: Floats | float = 1.0
) -> list[Estimate]:
    """The mean of each column over the rows where it is known, resampling rows; NaN is unknown, also in `pseudo_rc`,
    whose rows are pseudo-problems of weight `pseudo_r`. A row counts with its share."""
    n, width = rows_pc.shape
    values = np.vstack([rows_pc, pseudo_rc])
    known = np.isfinite(values).astype(np.float64)
    known[:n] *= share_pc
    shape = np.r_[np.ones(n), pseudo_r]
    means = weighted_means(np.hstack([np.where(known > 0, values, 0.0) * known, known]), shape, how.resamples, how.rng)
    total_bc, share_bc = means[:, :width], means[:, width:]
    resampled_bc = np.divide(total_bc, share_bc, out=np.full(total_bc.shape, np.nan), where=share_bc > 0)
    estimates = []
    for c in range(width):
        there = known[:n, c] > 0
        sure = rows_pc[there, c]
        # One problem alone says nothing about the variation between problems, unless pseudo-problems do.
        spread = resampled_bc[:, c] if len(sure) > 1 or known[n:, c].any() else np.empty(0)
        mean = float(np.average(sure, weights=known[:n, c][there])) if len(sure) else math.nan
        estimates.append(interval(mean, spread, len(sure), how.confidence))
    return estimates


def _perplexities(parts: Sequence[Part], problems: Sequence[_Hits], how: _Resampling) -> list[Perplexity]:
    cells_p4 = _cells(parts, problems, 1)
    shares = np.c_[np.ones(len(cells_p4)), cells_p4]
    found = []
    for drawn_by, under, name in _PERPLEXITIES:
        nll_p = _joined_values(parts, name)[0 if drawn_by == "base" else 1]
        if not np.isfinite(nll_p).any():
            continue
        columns = np.repeat(nll_p[:, None], 5, axis=1)
        estimates = _mean_estimates(columns, np.empty((0, 5)), np.empty(0), how, shares)
        by_cell = zip(("all", *CELLS), map(_exp, estimates), strict=True)
        found.append(Perplexity(drawn_by, under, dict(by_cell)))
    return found


def _exp(estimate: Estimate) -> Estimate:
    value, low, high = (math.exp(min(x, 700.0)) for x in estimate[:3])
    return Estimate(value, low, high, estimate.n)
