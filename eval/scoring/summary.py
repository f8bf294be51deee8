"""Perplexity, token entropy and length of scored sequences, with intervals.

As in `offleash compare`: perplexity is exp of the mean negative log-probability per token, the mean being over a
sequence's tokens, then over a problem's sequences, then over problems. That of a long sequence weighs no more than
that of a short one, unlike the corpus perplexity exp(-sum log p / sum tokens). Beside it stand the mean and the
median of the perplexities of single sequences. Intervals are over problems.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from offleash.eval.stats.intervals import Estimate, interval, weighted_means

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Summary(NamedTuple):
    """Of `sequences` that could be scored; each `Estimate.n` counts problems."""

    sequences: int
    perplexity: Estimate
    mean_perplexity: Estimate
    """Of single sequences, over problems."""
    median_perplexity: float
    """Of single sequences, all together."""
    token_entropy: Estimate
    tokens: Estimate


def summarise(
    problem_s: Ints,
    nll_s: Floats,
    entropy_s: Floats,
    tokens_s: Floats,
    *,
    confidence: float = 0.95,
    draws: int = 2000,
    seed: int = 0,
) -> Summary:
    """`nll_s` is minus the log-probability per token, NaN for a sequence without a score: it is left out."""
    kept = np.isfinite(nll_s)
    _, problem = np.unique(problem_s[kept], return_inverse=True)
    columns = [nll_s[kept], np.exp(nll_s[kept]), entropy_s[kept], tokens_s[kept]]
    problems = int(problem.max(initial=-1)) + 1
    if not problems:
        nothing = Estimate(np.nan, np.nan, np.nan, 0)
        return Summary(0, nothing, nothing, np.nan, nothing, nothing)
    means_pc = np.stack([problem_means(problem, column, problems) for column in columns], 1)
    draws_bc = weighted_means(means_pc, np.ones(problems), draws, np.random.default_rng(seed))
    draws_bc = draws_bc if problems > 1 else draws_bc[:0]  # one problem says nothing of how others would vary
    values_c = means_pc.mean(axis=0)
    values_c[0], draws_bc[:, 0] = np.exp(values_c[0]), np.exp(draws_bc[:, 0])
    found = [interval(float(values_c[c]), draws_bc[:, c], problems, confidence) for c in range(4)]
    return Summary(int(kept.sum()), found[0], found[1], float(np.median(columns[1])), found[2], found[3])


def problem_means(problem_s: Ints, value_s: Floats, problems: int) -> Floats:
    """Of each problem the mean over its sequences where the value is known; NaN where it never is."""
    known = np.isfinite(value_s)
    count_p = np.bincount(problem_s[known], minlength=problems)
    total_p = np.bincount(problem_s[known], value_s[known], minlength=problems)
    return np.divide(total_p, count_p, out=np.full(problems, np.nan), where=count_p > 0)
