"""Perplexity, token entropy and length of scored sequences, with intervals.

As in `offleash compare`, perplexity is exp of the mean negative log-probability per token: averaged over a sequence's
tokens, then over a problem's sequences, then over problems. Long sequences therefore weigh no more than short ones,
unlike in the corpus perplexity exp(-sum log p / sum tokens). The mean and the median of the perplexities of single
sequences are reported as well. Intervals are bootstrap intervals over problems.
"""

from typing import NamedTuple

import numpy as np

from offleash.eval.pool.counts import Floats, Ints
from offleash.eval.stats.intervals import Estimate, interval, weighted_means

RESAMPLES = 2000
CONFIDENCE = 0.95


class Summary(NamedTuple):
    """Of the `sequences` that were scored; `n` of each estimate counts problems."""

    sequences: int
    perplexity: Estimate
    mean_perplexity: Estimate
    """Mean perplexity of single sequences, averaged over problems."""
    median_perplexity: float
    """Median perplexity of single sequences, pooled over problems."""
    token_entropy: Estimate
    tokens: Estimate


def summarize(problem_s: Ints, nll_s: Floats, entropy_s: Floats, tokens_s: Floats) -> Summary:
    """`nll_s` is the negative log-probability per token; sequences where it is NaN (not scored) are left out."""
    kept = np.isfinite(nll_s)
    _, problem = np.unique(problem_s[kept], return_inverse=True)
    columns = [nll_s[kept], np.exp(nll_s[kept]), entropy_s[kept], tokens_s[kept]]
    problems = int(problem.max(initial=-1)) + 1
    if not problems:
        nothing = Estimate(np.nan, np.nan, np.nan, 0)
        return Summary(0, nothing, nothing, np.nan, nothing, nothing)
    means_pc = np.stack([problem_means(problem, column, problems) for column in columns], 1)
    resampled_bc = weighted_means(means_pc, np.ones(problems), RESAMPLES, np.random.default_rng(0))
    if problems == 1:
        resampled_bc = resampled_bc[:0]  # one problem says nothing about the variation between problems
    values_c = means_pc.mean(axis=0)
    values_c[0], resampled_bc[:, 0] = np.exp(values_c[0]), np.exp(resampled_bc[:, 0])
    found = [interval(float(values_c[c]), resampled_bc[:, c], problems, CONFIDENCE) for c in range(4)]
    return Summary(int(kept.sum()), found[0], found[1], float(np.median(columns[1])), found[2], found[3])


def problem_means(problem_s: Ints, value_s: Floats, problems: int) -> Floats:
    """For each problem the mean over its sequences with a finite value; NaN if there is none."""
    known = np.isfinite(value_s)
    count_p = np.bincount(problem_s[known], minlength=problems)
    total_p = np.bincount(problem_s[known], value_s[known], minlength=problems)
    return np.divide(total_p, count_p, out=np.full(problems, np.nan), where=count_p > 0)
