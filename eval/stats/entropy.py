"""Answer entropy: how spread a model's final answers to a problem are, in nats.

The paper's number (arXiv 2507.14843v4, Sec. 5.1 and B.4) is the plug-in entropy of the answer classes of n samples, "no
answer" counting as a class, averaged over problems. The plug-in is biased low by about (classes - 1)/2n: it makes the
model with more rare answers look less diverse than it is, and cannot be compared across different n. The corrected
estimator is that of Chao, Wang and Jost 2013 ("Entropy and the species accumulation curve", Methods in Ecology and
Evolution 4): an unbiased part for the classes seen, and an estimate of the unseen from the singletons and doubletons.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from offleash.eval.errors import ConfigError
from offleash.eval.stats.counts import check_counts

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def answer_entropy(counts_a: ArrayLike) -> float:
    """Plug-in entropy of one problem's answer classes, in nats: the paper's number. NaN without samples.

    Args:
        counts_a: samples of each answer class; "no answer" is a class as well.

    >>> from offleash.eval import answer_entropy
    >>> round(answer_entropy([4, 4]), 3), answer_entropy([8])
    (0.693, 0.0)
    """
    counts = _seen(counts_a)
    if counts.size == 0:
        return float("nan")
    share = counts / counts.sum()
    return max(0.0, float(-np.sum(share * np.log(share))))


def answer_entropy_at_k(counts_a: ArrayLike, k: int) -> float:
    """Expected plug-in entropy of a random k-subset of one problem's samples, in nats. NaN where k exceeds them.

    A class with c of the n samples has a hypergeometric number in the subset; the sum over classes is exact.
    """
    from scipy.special import gammaln

    counts, k = _seen(counts_a), int(check_counts("k", k))
    n = int(counts.sum())
    if not 1 <= k <= n:
        return float("nan")
    if k == n:
        return answer_entropy(counts)

    def log_choose(top: ArrayLike, bottom: ArrayLike) -> Floats:
        return gammaln(np.add(top, 1)) - gammaln(np.add(bottom, 1)) - gammaln(np.subtract(top, bottom) + 1)

    size_a1, times_a = (column[:, None] for column in np.unique(counts, return_counts=True))
    x = np.arange(1, min(k, int(counts.max())) + 1)
    possible_ax = (x <= size_a1) & (k - x <= n - size_a1)
    hits_ax = np.where(possible_ax, x, 0)
    rest_ax = np.where(possible_ax, k - x, 0)
    log_p = log_choose(size_a1, hits_ax) + log_choose(n - size_a1, rest_ax) - log_choose(n, k)
    terms_x = -x / k * np.log(x / k)
    return float(np.sum(times_a * np.where(possible_ax, np.exp(log_p), 0.0) * terms_x))


def answer_entropy_corrected(counts_a: ArrayLike) -> float:
    """Chao-Wang-Jost entropy of one problem's answer classes, in nats. NaN below two samples: one cannot be spread."""
    counts = _seen(counts_a)
    n = int(counts.sum())
    if n < 2:
        return float("nan")
    harmonic = np.concatenate([[0.0], np.cumsum(1 / np.arange(1, n))])  # harmonic[i] = 1 + 1/2 + ... + 1/i
    seen = float(np.sum(counts / n * (harmonic[n - 1] - harmonic[counts - 1])))
    once, twice = int(np.sum(counts == 1)), int(np.sum(counts == 2))
    if once == 0:
        return seen
    # The share of draws that would fall on a class seen once (Good-Turing, refined).
    share = 2 * twice / ((n - 1) * once + 2 * twice) if twice else 2 / ((n - 1) * (once - 1) + 2)
    return seen + once / n * _unseen(share, n)


def answer_entropies(
    problem_c: ArrayLike, count_c: ArrayLike, problems: int, k_p: ArrayLike | None = None
) -> tuple[Floats, Floats]:
    """Plug-in and corrected entropy of each of `problems` problems: (entropy_p, corrected_p). NaN without samples.

    Each answer class c is one entry: the index of its problem and its number of samples, in any order. `k_p`: the
    plug-in is that expected of k of a problem's samples (default: all). The corrected one does not depend on how many.
    """
    problem, count = check_counts("problem_c", problem_c), check_counts("count_c", count_c)
    if problem.shape != count.shape or problem.ndim != 1:
        raise ConfigError(f"problem_c and count_c must be vectors of one length, got {problem.shape} and {count.shape}")
    if problem.size and not (problem.min() >= 0 and problem.max() < problems):
        raise ConfigError(f"problem_c must lie in 0..{problems - 1}, got {problem.min()}..{problem.max()}")
    order = np.argsort(problem, kind="stable")
    starts = np.searchsorted(problem[order], np.arange(1, problems))
    counts_p = np.split(count[order], starts) if problems else []
    k = [int(counts.sum()) for counts in counts_p] if k_p is None else np.asarray(k_p).tolist()
    plain_p = np.array([answer_entropy_at_k(counts, k) for counts, k in zip(counts_p, k, strict=True)])
    return plain_p, np.array([answer_entropy_corrected(counts) for counts in counts_p])


def _seen(counts_a: ArrayLike) -> Ints:
    counts = check_counts("counts_a", counts_a)
    if counts.ndim != 1:
        raise ConfigError(f"counts_a must be a vector, one count per answer class; got shape {counts.shape}")
    return counts[counts > 0]


def _unseen(share: float, n: int) -> float:
    """(1-A)^(1-n) (-ln A - sum_{r<n} (1-A)^r / r), which is sum_{j>=1} (1-A)^j / (n-1+j).

    The first form cancels to nothing when A is large, the second needs 1/A terms when it is small; each is used where
    it works.
    """
    rest = 1 - share
    if share * n > 1:
        j = np.arange(1, int(40 / share) + 2)
        return float(np.sum(rest**j / (n - 1 + j)))
    r = np.arange(1, n)
    return float((-np.log(share) - np.sum(rest**r / r)) * rest ** (1 - n))
