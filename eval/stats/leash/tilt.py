"""The leash line: what the KL-optimal reweighting of the base would have at a given pass@1.

Training with a verifiable reward R in {0, 1} and a KL penalty beta has the optimum pi(y) = q(y) exp(R(y)/beta) / Z in
every problem, with one beta for all of them (arXiv 2507.14843, Prop. C.4, where beta is the inverse). With P the base's
probability of a correct answer and w = exp(1/beta), a correct answer goes from q to q w / (1 - P + w P): the
distribution over correct answers, given that the answer is correct, stays the base's, and the logit of P moves by
ln w = 1/beta, the same everywhere. Of all policies with the same mean pass@1 it is the one with the smallest mean KL to
the base: support that a policy loses beyond this it need not have lost, and support that it gains beyond this is not
explained by making the base's correct answers more likely.

For a given pass@1 the weight is unique: the mean over problems of expit(logit P + ln w) grows with ln w, from the share
of problems with P = 1 to that of problems with P > 0. Beyond them no weight exists: NaN; at the upper end ln w is inf.
A pass@1 below the base's has ln w < 0, and so a negative beta: the reweighting away from correct answers.
"""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from offleash.eval.stats.exact_support import EPSILONS, ExactSupport, check_probabilities, exact_support, sums
from offleash.eval.stats.passk import powers_of_two

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_LARGEST = 1500.0  # of |ln w|: more than any two float64 probabilities can differ by
_HALVINGS = 64
_SAME = 1e-12  # relative: pass@1 that differ by less are equal up to rounding


class Leash(NamedTuple):
    """The reweighting at one pass@1, and its support. All is NaN where no weight has this pass@1."""

    pass_at_1: float
    log_weight: float
    """ln w = 1/beta: below 0 where the pass@1 is below the base's."""
    probability_u: Floats
    support: ExactSupport | None
    """Against the base; None where no weight has this pass@1."""

    @property
    def beta(self) -> float:
        """The KL penalty whose optimum this is; inf for the base itself."""
        return beta_of(self.log_weight)


def beta_of(log_weight: float) -> float:
    """1 / ln w: inf for the base itself."""
    return 1 / log_weight if log_weight else float("inf")


def leash_line(
    base_u: ArrayLike,
    problem_u: ArrayLike,
    pass_at_1: float,
    *,
    epsilons: Iterable[float] = EPSILONS,
    ks: Iterable[int] = tuple(powers_of_two(8192)),
) -> Leash:
    """KL-optimal reweighting of the base at this pass@1, from exact probabilities of its units.

    Args:
        base_u: the base's probability of each correct answer.
        problem_u: the problem of each of them.
        pass_at_1: of the policy that the line is for: mean over problems of the probability of any correct answer.
        epsilons: floors at which support is reported.
        ks: budgets of pass@k.

    >>> from offleash.eval import leash_line
    >>> line = leash_line([0.2, 0.004, 0.05, 0.0004], [0, 0, 1, 1], pass_at_1=0.5)
    >>> round(line.beta, 2), line.probability_u.round(3).tolist()
    (0.47, [0.674, 0.013, 0.31, 0.002])
    >>> line.support.units[1e-2]
    Dynamics(preserved=2, shrunk=0, expanded=1, out=1)
    """
    log_weight = weight_at(base_u, problem_u, pass_at_1)
    tilted_u = tilt(base_u, problem_u, log_weight)
    known = not np.isnan(log_weight)
    support = exact_support(base_u, tilted_u, problem_u, epsilons=epsilons, ks=ks) if known else None
    return Leash(float(pass_at_1), log_weight, tilted_u, support)


def weight_at(base_u: ArrayLike, problem_u: ArrayLike, pass_at_1: float) -> float:
    """ln w at which the reweighted base has this mean pass@1; inf at, and NaN beyond, what any weight reaches."""
    base, index_u = check_probabilities("base", base_u, problem_u)
    base_p = sums(base, index_u)
    return float(solve(base_p[None], np.ones((1, base_p.size)), np.array([pass_at_1], dtype=np.float64))[0])


def tilt(base_u: ArrayLike, problem_u: ArrayLike, log_weight: float) -> Floats:
    """q w / (1 - P + w P) of each unit."""
    base, index_u = check_probabilities("base", base_u, problem_u)
    return base * factors(sums(base, index_u), np.float64(log_weight))[index_u]


def factors(base_p: Floats, log_weight: ArrayLike) -> Floats:
    """w / (1 - P + w P): by how much every correct answer of a problem grows. At least 1 where w is, at most 1 else."""
    log_w = np.asarray(log_weight, dtype=np.float64)
    small = np.exp(-np.abs(log_w))  # w or 1/w: never overflows
    with np.errstate(divide="ignore", invalid="ignore"):
        up = np.maximum(1 / (base_p + (1 - base_p) * small), 1.0)
        down = np.minimum(small / (1 - base_p + base_p * small), 1.0)
    grown = np.where(log_w >= 0, up, down)
    # A problem that is never or always solved stays so at every weight, the infinite ones too.
    certain = np.where(base_p >= 1, 1.0, np.where(base_p <= 0, 0.0, grown))
    return np.where(np.isnan(log_w), np.nan, certain)


def solve(base_bp: Floats, weight_bp: Floats, pass_at_1_b: Floats) -> Floats:
    """ln w of many sets of problems at once, one a row, each problem with a weight in the mean."""
    from scipy.special import expit, logit

    share_bp = weight_bp / weight_bp.sum(axis=1, keepdims=True)
    least_b, most_b = (np.einsum("bp,bp->b", share_bp, flag) for flag in (base_bp >= 1.0, base_bp > 0.0))
    with np.errstate(divide="ignore"):
        logit_bp = logit(base_bp)
    low_b, high_b = np.full(len(base_bp), -_LARGEST), np.full(len(base_bp), _LARGEST)
    for _ in range(_HALVINGS):
        middle_b = (low_b + high_b) / 2
        short_b = np.einsum("bp,bp->b", share_bp, expit(logit_bp + middle_b[:, None])) < pass_at_1_b
        low_b, high_b = np.where(short_b, middle_b, low_b), np.where(short_b, high_b, middle_b)
    found_b = (low_b + high_b) / 2
    above_b, below_b = pass_at_1_b * (1 + _SAME), pass_at_1_b * (1 - _SAME)
    own_b = np.einsum("bp,bp->b", share_bp, base_bp)
    found_b = np.where(above_b >= most_b, np.inf, np.where(below_b <= least_b, -np.inf, found_b))
    # The base's own pass@1 is the base, to the last digit.
    found_b = np.where((below_b <= own_b) & (own_b <= above_b), 0.0, found_b)
    return np.where((below_b > most_b) | (above_b < least_b) | np.isnan(pass_at_1_b), np.nan, found_b)


def sums_by(rows_bu: Floats, index_u: Ints) -> Floats:
    """Of every row, the sum over each problem's units: [rows, problems]."""
    order = np.argsort(index_u, kind="stable")
    starts = np.searchsorted(index_u[order], np.arange(int(index_u.max()) + 1))
    sums_bp: Floats = np.add.reduceat(rows_bu[:, order], starts, axis=1)
    return sums_bp
