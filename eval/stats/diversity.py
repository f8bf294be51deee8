"""How many different answers a model gives to a problem, in numbers that are easier to read than an entropy.

`effective_answers` is the Hill number of order 1 (Hill 1973, "Diversity and evenness", Ecology 54; Jost 2006, "Entropy
and diversity", Oikos 113): as many equally likely answers would have the same entropy.
`pcmd` looks at correct answers only: the probability that two correct samples of a problem give different answers. It
is one minus Simpson's index in its unbiased form (Simpson 1949, "Measurement of diversity", Nature 163): the share of
pairs of correct samples that differ. Where a problem has a single correct answer it is 0.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from offleash.eval.errors import ConfigError
from offleash.eval.stats.counts import check_counts

Floats = NDArray[np.float64]


def effective_answers(entropy_p: ArrayLike) -> Floats:
    """exp of each problem's answer entropy. Give it the corrected one: the plug-in is too small, and so is its exp."""
    return np.exp(np.asarray(entropy_p, dtype=np.float64))


def pcmd(problem_c: ArrayLike, correct_c: ArrayLike, problems: int) -> Floats:
    """1 - sum_c n_c (n_c - 1) / (n (n - 1)) of each problem; NaN with fewer than two correct samples.

    Each answer class c is one entry: the index of its problem and its number n_c of correct samples, in any order; n is
    the sum over a problem's classes.
    """
    problem, correct = check_counts("problem_c", problem_c), check_counts("correct_c", correct_c)
    if problem.shape != correct.shape or problem.ndim != 1:
        raise ConfigError(
            f"problem_c and correct_c must be vectors of one length, got {problem.shape} and {correct.shape}"
        )
    if problem.size and not (problem.min() >= 0 and problem.max() < problems):
        raise ConfigError(f"problem_c must lie in 0..{problems - 1}, got {problem.min()}..{problem.max()}")
    count = correct.astype(np.float64)
    n_p = np.bincount(problem, count, minlength=problems)
    same_p = np.bincount(problem, count * (count - 1), minlength=problems)
    return 1 - np.divide(same_p, n_p * (n_p - 1), out=np.full(problems, np.nan), where=n_p > 1)
