"""How firmly the units that moved were held: a test of strength, and the units that are beyond chance one by one.

A count of Shrunk units treats a unit that went from 60 hits to none like one that went from 1 to none. The strength of
a loss is T, the sum over Shrunk units of -ln(chance), chance being the unit's own probability to look Shrunk given its
hits in both pools together (`stats.noise.one_sided`). Its null distribution comes from the same exchangeability as that
of the count: the draws of each problem are dealt out to the two pools at random (its units' totals are split by a
multivariate hypergeometric), and p = (1 + deals at least as strong) / (1 + deals). That p is valid at any number of
deals, also with several units per problem, whose answers compete for the same draws.

A unit's chance is also its p-value. Which units have any hit is known from the totals alone, so Holm's procedure over
those units keeps the probability of naming even one unit wrongly below 5 %.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

DEALS = 1999
FAMILY_ERROR = 0.05
_BLOCK = 2_000_000  # numbers held in memory at once


def holm(p_u: Floats, error: float = FAMILY_ERROR) -> Flags:
    """Which of these hypotheses Holm's procedure rejects at a family-wise error of `error`."""
    order = np.argsort(p_u, kind="stable")
    below = p_u[order] <= error / np.arange(p_u.size, 0, -1)
    rejected = np.zeros(p_u.size, bool)
    rejected[order[: p_u.size if below.all() else int(np.argmin(below))]] = True
    return rejected


def beyond_chance(moved_u: Flags, chance_u: Floats, hit_u: Flags) -> Flags:
    """The moved units that chance does not explain one by one: Holm over all units with a hit on either side."""
    sure_u = np.zeros(moved_u.shape, bool)
    sure_u[hit_u] = holm(np.where(moved_u, chance_u, 1.0)[hit_u])
    return sure_u


def strength(moved_u: Flags, chance_u: Floats) -> Floats:
    """T of one table, or of many: `moved_u` may have rows before its units."""
    # A chance of 0 is one too small for a float: no unit moves that cannot.
    return np.asarray(moved_u @ -np.log(np.maximum(chance_u, np.finfo(float).tiny)))


def p_of_deals(observed: float, dealt_b: Floats) -> float:
    """Share of deals at least as large as what was observed, which is counted as one of them."""
    # The same units summed in another order differ in the last digits: those are ties.
    tolerance = 1e-9 * max(1.0, abs(observed))
    return float((1 + np.sum(dealt_b >= observed - tolerance)) / (1 + dealt_b.size))


def deal(
    total_u: Ints,
    n_here_u: Ints,
    n_there_u: Ints,
    problem_u: NDArray,
    statistics: Callable[[Ints], Floats],
    *,
    rng: np.random.Generator,
    deals: int = DEALS,
) -> Floats:
    """Statistics of random deals of every problem's draws to two pools: [deals, statistics].

    `statistics` maps hits here, [b, units], to [b, statistics]; hits there are the totals less those.
    """
    place_u = _place(problem_u)
    first = np.unique(problem_u, return_index=True)[1]
    index_u = np.unique(problem_u, return_inverse=True)[1]
    blocks = []
    step = max(1, _BLOCK // max(1, total_u.size))
    for start in range(0, deals, step):
        rows = min(step, deals - start)
        here_bu = np.empty((rows, total_u.size), np.int64)
        left_bp = np.tile(n_here_u[first], (rows, 1))  # draws here not yet dealt, and all draws not yet dealt
        rest_p = (n_here_u + n_there_u)[first]
        for place in range(int(place_u.max(initial=-1)) + 1):
            units = np.flatnonzero(place_u == place)
            problems, total = index_u[units], total_u[units]
            dealt = rng.hypergeometric(total, rest_p[problems] - total, left_bp[:, problems])
            here_bu[:, units] = dealt
            left_bp[:, problems] -= dealt
            rest_p[problems] -= total
        blocks.append(statistics(here_bu))
    return np.concatenate(blocks)


def _place(problem_u: NDArray) -> Ints:
    """The place of each unit among those of its problem: 0, 1, 2, ..."""
    order = np.argsort(problem_u, kind="stable")
    starts = np.flatnonzero(np.r_[True, problem_u[order][1:] != problem_u[order][:-1]]) if order.size else order
    place_u = np.empty(problem_u.size, np.int64)
    sizes = np.diff(np.r_[starts, order.size])
    place_u[order] = np.arange(order.size) - np.repeat(starts, sizes)
    return place_u
