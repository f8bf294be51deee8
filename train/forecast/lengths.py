"""How long prompts and completions are: the mean, the limit, and how long the longest of several is.

Lengths of completions are skewed: many are short, a few run into the limit. They are taken to be lognormal, cut at the
limit, with the given mean. What it costs to wait for the longest completion, or to pad a batch to it, follows.
"""

import math
from functools import cache
from typing import NamedTuple

import numpy as np
from scipy.special import betainc, ndtr

SPREAD = 0.7
"""Standard deviation of the logarithm of a length: the 95th percentile is 3.2 times the median. An assumption."""
_POINTS = 4096


class Size(NamedTuple):
    """Of a sequence in a batch, on average: its tokens, and their square, which attention takes."""

    tokens: float
    square: float


class Lengths(NamedTuple):
    """Mean tokens of a prompt and of a completion, and the longest that a completion can be."""

    prompt: float
    completion: float
    longest: int

    @property
    def both(self) -> float:
        return self.prompt + self.completion

    def longest_of(self, sequences: float) -> float:
        """Tokens of the longest of so many completions, on average."""
        return longest_size(self.completion, self.longest, max(sequences, 1.0)).tokens

    def padded(self, sequences: float = 1.0, of: float | None = None) -> Size:
        """A prompt and the longest of so many completions; as it is drawn with 1.

        `of`: of so many, dealt out by length to batches of `sequences`.
        """
        each = max(sequences, 1.0)
        tokens, square = longest_size(self.completion, self.longest, each, max(each, of or each))
        return Size(self.prompt + tokens, self.prompt**2 + 2 * self.prompt * tokens + square)


@cache
def longest_size(mean: float, limit: float, sequences: float, of: float | None = None) -> Size:
    """The longest of independent lengths with this mean and limit: E[max] = integral of 1 - F(x)^n, and E[max^2].

    Of n that are dealt out by length to batches of m, those are the longest whose places, from below, are n, n - m,
    n - 2 m, ...: the mean over these. The i-th of n is at most x with the probability of the incomplete beta function.
    """
    if mean >= limit * (1 - 1e-3):
        return Size(float(limit), float(limit) ** 2)
    x = (np.arange(_POINTS) + 0.5) / _POINTS * limit
    below = ndtr((np.log(x) - _location(mean, limit)) / SPREAD)
    count = of or sequences
    place_b = np.arange(count, sequences - 1, -sequences)
    is_less_xb = betainc(place_b, count - place_b + 1, below[:, None])
    above = (1 - is_less_xb.mean(axis=1)) * limit / _POINTS
    return Size(float(above.sum()), float((2 * x * above).sum()))


@cache
def _location(mean: float, limit: float) -> float:
    """Of the lognormal whose mean, cut at the limit, is `mean`: by bisection."""
    low, high = math.log(mean) - SPREAD**2 / 2, math.log(limit) + 8 * SPREAD
    for _ in range(60):
        middle = (low + high) / 2
        reach = (math.log(limit) - middle) / SPREAD
        found = math.exp(middle + SPREAD**2 / 2) * ndtr(reach - SPREAD) + limit * ndtr(-reach)
        low, high = (middle, high) if found < mean else (low, middle)
    return (low + high) / 2
