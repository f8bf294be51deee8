"""Conditional inertness: do arms whose advantages see only rewards share one path of the answers given correctness?

An advantage that is a function of the group's binary rewards has the expected gradient c(P) grad P on a problem with
probability P of a correct answer, whatever the function. So at equal P of a problem the conditional distribution over
its correct answers is the same for all such arms (for independent softmax policies; approximately for a shared
network). Statistic, predictions and what refutes them: recipes/variants/PREDICTIONS.md.

The distance of two runs on a problem is the total variation between their conditional distributions at equal P,
averaged over a few values of P. `departure` is how much further an arm's runs are from plain's than plain's are from
each other, in units of how far plain itself moved from the base. As written down before the runs it is biased in two
ways. Each of the three distances is at the values of P that its own two runs share, and distances grow with P: an arm
that learns less than plain gets a number that is too low. And only plain's scatter over seeds is subtracted: with one
and the same mean path, an arm whose runs scatter more than plain's gets a number above 0, one whose runs scatter less
a number below. `corrected` has all distances at the same values of P and subtracts the scatter of both, as the energy
distance does (Szekely and Rizzo 2013): arm to plain, less half of arm to arm and half of plain to plain.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from offleash.eval.stats.intervals import Estimate
from offleash.train.variants.equal_pass import first_reached, rising
from offleash.train.variants.planned.exact import ExactPath
from offleash.train.variants.plans import CLAIM_SEEDS
from offleash.train.variants.significance import CONFIDENCE, mean_over_seeds, t_quantile

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

FRACTIONS = (0.25, 0.5, 0.75, 1.0)
"""Of the way from the base's P of a problem to the highest that two runs share."""
LEAST_GAIN = 0.05
"""Of P, by both runs, for a problem to be compared."""
LEAST_PROBLEMS = 10
BOUND = 0.1
"""A reward-only arm is predicted to depart by less."""
REWARD_ONLY = (
    *("low_lr", "high_lr", "equal_samples", "pass_at_k", "pkpo", "maxrl", "focal", "nsr", "w_reinforce"),
    "dynamic_sampling",
)
PREDICTED_TO_LEAVE = ("tilt", "rehearsal", "mode_replay")
ANSWER_AWARE = (
    *("outcome_batch", "outcome_ucb", "unlikeliness", "ucpo", "mode_replay", "rehearsal", "anchor", "anchor_js"),
    *("seeding", "tilt"),
)
_TINY = 1e-300  # a probability of exactly 0 has no logarithm


class Departure(NamedTuple):
    departure: Estimate
    """0: as plain's runs among themselves. NaN if too little can be compared. n counts seeds."""
    corrected: Estimate
    """The same without its two biases: at equal P, and beyond the scatter of both arms' seeds."""
    problems: int
    """Compared: those that enough runs of both learned."""
    entropy: Estimate
    """Of the conditional distribution, in nats, minus plain's at equal P; means over seeds of the same number."""
    entropy_from_base: Estimate
    """The same minus the base's."""
    forward_kl: Estimate
    """Of the base to the run over correct answers (`forward_kl`), minus plain's at equal pass@1."""
    word: str
    """What becomes of the prediction, by `departure`: `held`, `refuted` or `undecided`; empty if there is none."""
    word_corrected: str
    """Likewise, by `corrected`."""
    entropy_word: str
    """Of the prediction that entropy falls below the base's, for a reward-only arm."""


class Curves:
    """A run's P of every problem, made monotone, and its log-probabilities."""

    def __init__(self, path: ExactPath) -> None:
        self.problem_u = path.problem_u
        correct_tp = path.correct_tp()
        self.base_p, self.most_p = correct_tp[0], correct_tp.max(axis=0)
        self.fit_tp = np.array([rising(column) for column in correct_tp.T.tolist()]).T
        self.log_tu = np.log(np.maximum(path.probability_tu, _TINY))

    def conditional_u(self, level_p: Floats) -> Floats:
        """The distribution over each problem's correct answers where its P was the level, interpolated."""
        at_p = np.maximum((self.fit_tp <= level_p).sum(axis=0) - 1, 0)
        next_p = np.minimum(at_p + 1, len(self.fit_tp) - 1)
        below_p, above_p = (np.take_along_axis(self.fit_tp, i[None], axis=0)[0] for i in (at_p, next_p))
        rise_p = above_p - below_p
        part_p = np.clip(np.divide(level_p - below_p, rise_p, out=np.zeros_like(rise_p), where=rise_p > 0), 0.0, 1.0)
        unit = np.arange(len(self.problem_u))
        before_u, after_u = (self.log_tu[i[self.problem_u], unit] for i in (at_p, next_p))
        return _normalized(before_u + part_p[self.problem_u] * (after_u - before_u), self.problem_u)


def departure_of(arm: str, ours: Mapping[int, ExactPath], plain: Mapping[int, ExactPath]) -> Departure:
    """From the runs of both by seed."""
    seeds = sorted(set(ours) & set(plain))
    if len(seeds) < CLAIM_SEEDS:
        return _unknown(len(seeds))
    pairs = [(Curves(ours[seed]), Curves(plain[seed])) for seed in seeds]
    mine, theirs = ([pair[i] for pair in pairs] for i in range(2))
    tables, beyond = _tables(mine, theirs), _beyond_scatter(mine, theirs)
    several = list(range(len(seeds)))
    problems = min(int(each.compared(several).sum()) for each in (tables, beyond))
    if problems < LEAST_PROBLEMS:
        return _unknown(len(seeds))
    found, corrected = (_jackknife(each.departure, len(seeds)) for each in (tables, beyond))
    gaps = [_entropy_gaps(mine, theirs) for mine, theirs in pairs]
    kls = [_forward_kl_gap(ours[seed], plain[seed]) for seed in seeds]
    to_plain, to_base = (mean_over_seeds([gap[i] for gap in gaps]) for i in range(2))
    words = (_word(arm, found, to_plain), _word(arm, corrected, to_plain), _entropy_word(arm, to_base))
    return Departure(found, corrected, problems, to_plain, to_base, mean_over_seeds(kls), *words)


def distances(ours: Curves, theirs: Curves) -> Floats:
    """Per problem the mean total variation at equal P; NaN where one gained too little."""
    levels, compared_p = _levels(ours, theirs)
    gaps = [_variation(ours.conditional_u(x_p), theirs.conditional_u(x_p), ours.problem_u) for x_p in levels]
    return np.where(compared_p, np.mean(gaps, axis=0), np.nan)


def moved(run: Curves) -> Floats:
    """Per problem the mean total variation between the run and the base."""
    levels, compared_p = _levels(run)
    base_u = _normalized(run.log_tu[0], run.problem_u)
    gaps = [_variation(run.conditional_u(x_p), base_u, run.problem_u) for x_p in levels]
    return np.where(compared_p, np.mean(gaps, axis=0), np.nan)


def forward_kl(path: ExactPath, passed: float) -> float:
    """Mean over problems of the sum of b log(b / pi) over correct answers, b the base, where pass@1 was `passed`."""
    log_tu = np.log(np.maximum(path.probability_tu, _TINY))
    place = first_reached(path.correct_tp().mean(axis=1).tolist(), passed)
    after = min(place.at + 1, len(log_tu) - 1)
    log_u = log_tu[place.at] + place.part * (log_tu[after] - log_tu[place.at])
    return float(np.bincount(path.problem_u, path.base_u * (log_tu[0] - log_u)).mean())


def entropies(share_u: Floats, problem_u: Ints) -> Floats:
    """Of each problem's distribution over its correct answers, in nats."""
    return np.asarray(np.bincount(problem_u, -share_u * np.log(np.maximum(share_u, _TINY))), dtype=np.float64)


class _Tables(NamedTuple):
    """Distances by problem: of an arm's runs to plain's, of plain's among themselves, and of plain's to the base."""

    across_ijp: Floats
    within_ijp: Floats
    moved_ip: Floats

    def departure(self, kept: Sequence[int]) -> float:
        across_p, within_p, moved_p = self._means(kept)
        there_p = self.compared(kept)
        return float((across_p - within_p)[there_p].mean() / moved_p[there_p].mean())

    def compared(self, kept: Sequence[int]) -> NDArray[np.bool_]:
        across_p, within_p, moved_p = self._means(kept)
        return ~np.isnan(across_p + within_p + moved_p)

    def _means(self, kept: Sequence[int]) -> tuple[Floats, Floats, Floats]:
        """Over pairs of seeds; NaN for a problem that no pair can compare."""
        chosen = np.ix_(kept, kept)
        pairs = [table[chosen].reshape(len(kept) ** 2, -1) for table in (self.across_ijp, self.within_ijp)]
        return _nanmean(pairs[0]), _nanmean(pairs[1]), _nanmean(self.moved_ip[list(kept)])


def _tables(ours: Sequence[Curves], plain: Sequence[Curves]) -> _Tables:
    """Pairs of equal seeds share their data and do not count: NaN."""
    n, none_p = len(plain), np.full(plain[0].fit_tp.shape[1], np.nan)
    across = [[distances(ours[i], plain[j]) if i != j else none_p for j in range(n)] for i in range(n)]
    within = [[distances(plain[i], plain[j]) if j < i else none_p for j in range(n)] for i in range(n)]
    return _Tables(np.array(across), np.array(within), np.array([moved(run) for run in plain]))


class _Beyond(NamedTuple):
    """For seeds i > j of arm and plain, all at the values of P that the four runs share; NaN elsewhere."""

    further_ijp: Floats
    """Arm to plain, less half of arm to arm and half of plain to plain."""
    moved_ijp: Floats
    """Plain to the base."""

    def departure(self, kept: Sequence[int]) -> float:
        further_p, moved_p = self._means(kept)
        there_p = self.compared(kept)
        return float(further_p[there_p].mean() / moved_p[there_p].mean())

    def compared(self, kept: Sequence[int]) -> NDArray[np.bool_]:
        further_p, moved_p = self._means(kept)
        return ~np.isnan(further_p + moved_p)

    def _means(self, kept: Sequence[int]) -> tuple[Floats, Floats]:
        chosen = np.ix_(kept, kept)
        further_p, moved_p = (_nanmean(table[chosen].reshape(len(kept) ** 2, -1)) for table in self)
        return further_p, moved_p


def _beyond_scatter(ours: Sequence[Curves], plain: Sequence[Curves]) -> _Beyond:
    n, problems = len(plain), plain[0].fit_tp.shape[1]
    further, run_moved = np.full((n, n, problems), np.nan), np.full((n, n, problems), np.nan)
    for j, i in combinations(range(n), 2):
        further[i, j], run_moved[i, j] = _beyond_pair((ours[i], ours[j]), (plain[i], plain[j]))
    return _Beyond(further, run_moved)


def _beyond_pair(ours: tuple[Curves, Curves], plain: tuple[Curves, Curves]) -> tuple[Floats, Floats]:
    """Of two seeds, per problem: pairs of equal seeds share their data and do not count."""
    levels, compared_p = _levels(*ours, *plain)
    problem_u = plain[0].problem_u
    base_u = _normalized(plain[0].log_tu[0], problem_u)
    further, way = [], []
    for level_p in levels:
        a_u, b_u, c_u, d_u = (run.conditional_u(level_p) for run in (*ours, *plain))
        pairs = ((a_u, d_u), (b_u, c_u), (a_u, b_u), (c_u, d_u), (c_u, base_u), (d_u, base_u))
        ad, bc, ab, cd, c, d = (_variation(x_u, y_u, problem_u) for x_u, y_u in pairs)
        further.append((ad + bc - ab - cd) / 2)
        way.append((c + d) / 2)
    means = (np.where(compared_p, np.mean(values, axis=0), np.nan) for values in (further, way))
    return next(means), next(means)


def _levels(*runs: Curves) -> tuple[list[Floats], NDArray[np.bool_]]:
    """Values of P for every problem, and which problems have several answers and were learned by all of the runs."""
    start_p, top_p = runs[0].base_p, np.min([run.fit_tp[-1] for run in runs], axis=0)
    learned_p = np.min([run.most_p for run in runs], axis=0) - start_p >= LEAST_GAIN
    compared_p = learned_p & (top_p - start_p >= LEAST_GAIN) & (np.bincount(runs[0].problem_u) >= 2)
    return [start_p + fraction * (top_p - start_p) for fraction in FRACTIONS], compared_p


def _jackknife(value: Callable[[Sequence[int]], float], n: int) -> Estimate:
    """Student's t with the error of the delete-one jackknife over seeds."""
    full = value(range(n))
    without = np.array([value([i for i in range(n) if i != left]) for left in range(n)])
    error = math.sqrt((n - 1) / n * float(((without - without.mean()) ** 2).sum()))
    half = t_quantile((1 + CONFIDENCE) / 2, n - 1) * error
    return Estimate(full, full - half, full + half, n)


def _entropy_gaps(ours: Curves, plain: Curves) -> tuple[float, float]:
    """At the highest P that both reach: the run's mean conditional entropy minus plain's, and minus the base's."""
    levels, compared_p = _levels(ours, plain)
    if not compared_p.any():
        return math.nan, math.nan
    base_u = _normalized(ours.log_tu[0], ours.problem_u)
    shares = (ours.conditional_u(levels[-1]), plain.conditional_u(levels[-1]), base_u)
    mine, theirs, base = (float(entropies(share_u, ours.problem_u)[compared_p].mean()) for share_u in shares)
    return mine - theirs, mine - base


def _forward_kl_gap(ours: ExactPath, plain: ExactPath) -> float:
    top = min(float(path.correct_tp().mean(axis=1).max()) for path in (ours, plain))
    return forward_kl(ours, top) - forward_kl(plain, top)


def _word(arm: str, found: Estimate, entropy: Estimate) -> str:
    """`entropy`: minus plain's at equal P."""
    if arm in REWARD_ONLY:
        return "held" if found.high < BOUND else "refuted" if found.low > BOUND else "undecided"
    if arm not in PREDICTED_TO_LEAVE:
        return ""
    if found.high < 0 or entropy.high < 0:
        return "refuted"
    return "held" if found.low > 0 and entropy.low > 0 else "undecided"


def _entropy_word(arm: str, from_base: Estimate) -> str:
    if arm not in REWARD_ONLY:
        return ""
    return "held" if from_base.high < 0 else "refuted" if from_base.low > 0 else "undecided"


def _unknown(seeds: int) -> Departure:
    nothing = Estimate(math.nan, math.nan, math.nan, seeds)
    return Departure(nothing, nothing, 0, nothing, nothing, nothing, *["not compared"] * 3)


def _nanmean(rows_xp: Floats) -> Floats:
    known = ~np.isnan(rows_xp)
    counts_p = known.sum(axis=0)
    sums_p = np.where(known, rows_xp, 0.0).sum(axis=0)
    return np.divide(sums_p, counts_p, out=np.full(counts_p.shape, np.nan), where=counts_p > 0)


def _normalized(log_u: Floats, problem_u: Ints) -> Floats:
    top_p = np.full(int(problem_u.max()) + 1, -np.inf)
    np.maximum.at(top_p, problem_u, log_u)
    weight_u = np.exp(log_u - top_p[problem_u])
    return weight_u / np.bincount(problem_u, weight_u)[problem_u]


def _variation(ours_u: Floats, theirs_u: Floats, problem_u: Ints) -> Floats:
    """Total variation per problem."""
    return np.bincount(problem_u, np.abs(ours_u - theirs_u)) / 2
