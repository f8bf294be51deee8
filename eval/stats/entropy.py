"""Answer entropy: how spread a model's final answers to a problem are, in nats.

The paper's number (arXiv 2507.14843v4, Sec. 5.1 and B.4) is the plug-in entropy of the answer classes of n samples, "no
answer" being a class of its own, averaged over problems. The plug-in is biased low by about (classes - 1)/2n: it makes
the model with more rare answers look less diverse than it is, and cannot be compared across different n. Beside it
stands the estimator of Chao, Wang and Jost 2013 ("Entropy and the species accumulation curve", Methods in Ecology and
Evolution 4): an unbiased part for what was seen, and what the singletons and doubletons say of the unseen.
"""

from collections import Counter
from collections.abc import Hashable, Iterable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from offleash.eval.errors import ConfigError
from offleash.eval.stats.passk import pass_at_k

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def answer_counts(answers: Iterable[Hashable | None]) -> Ints:
    """Samples per answer class of one problem, largest first; None ("no answer") is a class like any other."""
    return np.array(sorted(Counter(answers).values(), reverse=True), dtype=np.int64)


def answer_entropy(counts_a: ArrayLike) -> float:
    """Plug-in entropy of one problem's answer classes, in nats: the paper's. NaN without samples."""
    counts = _seen(counts_a)
    if counts.size == 0:
        return float("nan")
    share = counts / counts.sum()
    return max(0.0, float(-np.sum(share * np.log(share))))


def answer_entropy_corrected(counts_a: ArrayLike) -> float:
    """Chao-Wang-Jost entropy of one problem's answer classes, in nats. NaN without samples."""
    counts = _seen(counts_a)
    if counts.size == 0:
        return float("nan")
    n = int(counts.sum())
    harmonic = np.concatenate([[0.0], np.cumsum(1 / np.arange(1, max(n, 2)))])  # harmonic[i] = 1 + 1/2 + ... + 1/i
    seen = float(np.sum(counts / n * (harmonic[n - 1] - harmonic[counts - 1])))
    once, twice = int(np.sum(counts == 1)), int(np.sum(counts == 2))
    if once == 0 or n == 1:
        return seen
    # The share of draws that would fall on a class seen once (Good-Turing, refined).
    share = 2 * twice / ((n - 1) * once + 2 * twice) if twice else 2 / ((n - 1) * (once - 1) + 2)
    return seen + once / n * _unseen(share, n)


def distinct_answers(counts_a: ArrayLike) -> int:
    """How many answer classes were seen."""
    return int(_seen(counts_a).size)


def distinct_at_k(counts_a: ArrayLike, ks: ArrayLike) -> Floats:
    """Expected answer classes in k of the n samples, unbiased: comparable across pools of different n. NaN if k > n."""
    counts = _seen(counts_a)
    if counts.size == 0:
        return np.full(np.atleast_1d(ks).shape, np.nan)
    return pass_at_k(counts, int(counts.sum()), ks).sum(axis=0)


def answer_entropies(problem_s: ArrayLike, answer_s: ArrayLike, problems: int) -> tuple[Floats, Floats]:
    """Plug-in and corrected entropy of every problem from flat samples: (entropy_p, corrected_p).

    `problem_s` is each sample's problem, 0..problems-1; `answer_s` its answer class as a whole number, any value
    (-1, say) standing for "no answer". A problem without samples is NaN. The paper's number is the mean of the first.
    """
    problem, answer = np.asarray(problem_s, dtype=np.int64), np.asarray(answer_s, dtype=np.int64)
    if problem.shape != answer.shape or problem.ndim != 1:
        raise ConfigError(f"one problem and one answer per sample are needed, got {problem.shape} and {answer.shape}")
    if problem.size and not (problem.min() >= 0 and problem.max() < problems):
        raise ConfigError(f"problem_s must lie in 0..{problems - 1}, got {problem.min()}..{problem.max()}")
    pairs, counts = np.unique(np.stack([problem, answer], axis=1), axis=0, return_counts=True)
    by_problem = np.split(counts, np.searchsorted(pairs[:, 0], np.arange(1, problems))) if problems else []
    plain = np.array([answer_entropy(c) for c in by_problem])
    return plain, np.array([answer_entropy_corrected(c) for c in by_problem])


def _seen(counts_a: ArrayLike) -> Ints:
    counts = np.asarray(counts_a)
    whole = counts.astype(np.int64)
    if counts.ndim != 1 or np.any(whole != counts) or np.any(whole < 0):
        raise ConfigError("counts_a must be a vector of whole counts, one per answer class")
    return whole[whole > 0]


def _unseen(share: float, n: int) -> float:
    """(1-A)^(1-n) (-ln A - sum_{r<n} (1-A)^r / r), which is sum_{j>=1} (1-A)^j / (n-1+j).

    The first form cancels to nothing when A is large, the second needs 1/A terms when it is small: each where it works.
    """
    rest = 1 - share
    if share * n > 1:
        j = np.arange(1, int(40 / share) + 2)
        return float(np.sum(rest**j / (n - 1 + j)))
    r = np.arange(1, n)
    return float((-np.log(share) - np.sum(rest**r / r)) * rest ** (1 - n))
