"""The regularised incomplete beta function and its inverse, in numpy.

I_x(a, b) by its continued fraction (NIST DLMF 8.17.22) evaluated with Lentz's method, on whichever of x and 1 - x makes
it converge fast. It is all that exact binomial bounds and Beta posteriors need.
"""

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

_TINY = 1e-300
_CLOSE = 1e-14  # a few units in the last place: rounding keeps the last factor from ever being exactly 1
_STEPS = 20_000  # the fraction needs O(sqrt(max(a, b))) of them


def beta_cdf(a: ArrayLike, b: ArrayLike, x: ArrayLike) -> Floats:
    """I_x(a, b): the probability that a Beta(a, b) variable is at most x. Broadcasts; a, b > 0."""
    a_, b_, x_ = np.broadcast_arrays(np.asarray(a, float), np.asarray(b, float), np.clip(np.asarray(x, float), 0, 1))
    shape = a_.shape
    a_, b_, x_ = a_.ravel(), b_.ravel(), x_.ravel()
    flip = x_ > (a_ + 1) / (a_ + b_ + 2)
    low_a, low_b = np.where(flip, b_, a_), np.where(flip, a_, b_)
    low_x = np.where(flip, 1 - x_, x_)
    # ln(x) and ln(1 - x) of the unflipped x: 1 - (1 - x) would lose a small x.
    with np.errstate(divide="ignore"):
        log_x, log_rest = np.log(x_), np.log1p(-x_)
    log_front = _weighted(a_, log_x) + _weighted(b_, log_rest) - _log_beta(low_a, low_b) - np.log(low_a)
    lower = np.exp(log_front) * _fraction(low_a, low_b, low_x)
    return np.clip(np.where(flip, 1 - lower, lower), 0.0, 1.0).reshape(shape)


def beta_quantile(a: ArrayLike, b: ArrayLike, q: ArrayLike) -> Floats:
    """The x with I_x(a, b) = q, by bisection to the last bit that matters."""
    a_, b_, q_ = np.broadcast_arrays(np.asarray(a, float), np.asarray(b, float), np.asarray(q, float))
    low, high = np.zeros(a_.shape), np.ones(a_.shape)
    for _ in range(80):
        middle = (low + high) / 2
        below = beta_cdf(a_, b_, middle) < q_
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return (low + high) / 2


def _weighted(weight: Floats, log: Floats) -> Floats:
    return np.where(weight > 0, weight * log, 0.0)


def _log_beta(a: Floats, b: Floats) -> Floats:
    pairs, index = np.unique(np.stack([a, b], axis=-1), axis=0, return_inverse=True)
    values = [math.lgamma(p) + math.lgamma(q) - math.lgamma(p + q) for p, q in pairs]
    return np.asarray(values)[index.ravel()]


def _fraction(a: Floats, b: Floats, x: Floats) -> Floats:
    result = np.empty_like(x)
    going = np.arange(x.size)  # most entries converge in a few steps and leave
    c = np.ones_like(x)
    d = _invert(1 - (a + b) * x / (a + 1))
    value = d
    for m in range(1, _STEPS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        d, c = _invert(1 + even * d), _away_from_zero(1 + even / c)
        value = value * d * c
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        d, c = _invert(1 + odd * d), _away_from_zero(1 + odd / c)
        value = value * d * c
        done = np.abs(d * c - 1) < _CLOSE
        if np.any(done):
            result[going[done]] = value[done]
            going = going[~done]
            a, b, x, c, d, value = (array[~done] for array in (a, b, x, c, d, value))
        if going.size == 0:
            return result
    raise ArithmeticError("the continued fraction of the incomplete beta function did not converge")


def _away_from_zero(value: Floats) -> Floats:
    return np.where(np.abs(value) < _TINY, _TINY, value)


def _invert(value: Floats) -> Floats:
    return 1 / _away_from_zero(value)
