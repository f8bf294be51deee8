"""Which of many moves are real, if a few false ones among those named are acceptable: the false discovery rate.

Benjamini and Hochberg 1995: of the hypotheses rejected at rate q, at most the fraction q is false in expectation. It
names more units than Holm's procedure (`stats.strength`), which keeps the chance of even one false name below 5 %.
Valid for independent p-values and for positively dependent ones (Benjamini, Yekutieli 2001). The chances of units of
one problem are a little negatively dependent, and conservative because counts are integers.
"""

import numpy as np
from numpy.typing import NDArray

from offleash.eval.stats.noise import one_sided

RATE = 0.05

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]


def discoveries(p_u: Floats, rate: float = RATE) -> Flags:
    """Which of these hypotheses are rejected at a false discovery rate of `rate`."""
    order = np.argsort(p_u, kind="stable")
    below = np.flatnonzero(p_u[order] <= rate * np.arange(1, p_u.size + 1) / max(p_u.size, 1))
    found = np.zeros(p_u.size, bool)
    found[order[: below[-1] + 1 if below.size else 0]] = True
    return found


def moves(base_u: Ints, policy_u: Ints, n_base_u: Ints, n_policy_u: Ints, rate: float = RATE) -> tuple[Flags, Flags]:
    """The units lost, and those gained, beyond what sampling noise explains: hits on one side and none on the other.

    Both directions are tested together, over the units that have a hit on either side.
    """
    total_u = base_u + policy_u
    hit_u = total_u > 0
    lost_u, gained_u = hit_u & (policy_u == 0), hit_u & (base_u == 0)
    chance_u = np.where(
        lost_u, one_sided(total_u, n_base_u, n_policy_u, 1), one_sided(total_u, n_policy_u, n_base_u, 1)
    )
    sure_u = np.zeros(hit_u.shape, bool)
    sure_u[hit_u] = discoveries(np.where(lost_u | gained_u, 2 * chance_u, 1.0)[hit_u], rate)
    return lost_u & sure_u, gained_u & sure_u
