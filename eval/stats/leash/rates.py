"""How a base's rates differ between units, whatever the shape: a mixture of Betas fitted to its hits.

The line needs rates around and below 1/n, summed over units. One Beta (`stats.beta_binomial`) has too little freedom
for that: with rates spread over orders of magnitude, or half of them near zero, its line is off by .1 and more
(`bench/calibration.py --table leash`). Here the prior is a mixture of Betas with means a factor of two apart, from 1e-8
up; only their shares are fitted, by maximum likelihood (EM, from equal shares). The likelihood is concave in the
shares, so the start matters only where the hits say nothing, as far below 1/n: there the equal shares stay.

A unit with c hits in n draws has a mixture of Betas again, from which rates are drawn.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from offleash.eval.stats.beta_binomial import fewer_hits
from offleash.eval.stats.counts import check_draws

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_SHAPE = 3.0  # of each component: a relative spread of about 1/sqrt(3)
_MEAN = 1 / (1 + np.exp(-np.arange(np.log(1e-8), 4.2, np.log(2))))
_A = np.where(_MEAN < 0.5, _SHAPE, _SHAPE * _MEAN / (1 - _MEAN))
_B = np.where(_MEAN < 0.5, _SHAPE * (1 - _MEAN) / _MEAN, _SHAPE)
_ROUNDS, _MORE_ROUNDS = 300, 30


class Rates(NamedTuple):
    """The fitted shares, and each unit's hits."""

    share_g: Floats
    hits_u: Ints
    n_u: Ints
    kind_u: Ints
    """Which of the distinct (hits, draws) each unit has."""
    likelihood_kg: Floats
    """Of each kind under each component, up to a factor of the kind."""

    @classmethod
    def fitted(cls, hits_u: ArrayLike, n_u: ArrayLike) -> "Rates":
        from scipy.special import betaln

        hits, n = check_draws("base", hits_u, n_u)
        kinds_2k, kind_u, times_k = np.unique(np.stack([hits, n]), axis=1, return_inverse=True, return_counts=True)
        c, m = kinds_2k[0][:, None], kinds_2k[1][:, None]
        log_kg = betaln(_A + c, _B + m - c) - betaln(_A, _B)
        likelihood_kg = np.exp(log_kg - log_kg.max(axis=1, keepdims=True))
        even_g = np.full((1, _MEAN.size), 1 / _MEAN.size)
        share_g = _em(likelihood_kg, times_k[None].astype(np.float64), even_g, _ROUNDS)[0]
        return cls(share_g, hits, n, kind_u.ravel(), likelihood_kg)

    def fewer_again(self, again_u: ArrayLike, threshold: int = 1, share_bg: Floats | None = None) -> Floats:
        """Probability that `again_u` further draws hit each unit fewer than `threshold` times; or for other shares."""
        columns = np.stack([self.hits_u, self.n_u, np.broadcast_to(again_u, self.hits_u.shape), self.kind_u])
        (hits, n, again, kind), which_u = np.unique(columns, axis=1, return_inverse=True)
        chance_kg = fewer_hits(_A + hits[:, None], _B + (n - hits)[:, None], again[:, None], threshold)
        likelihood_gk = self.likelihood_kg[kind].T
        share = self.share_g if share_bg is None else share_bg
        fewer: Floats = (share @ (likelihood_gk * chance_kg.T)) / (share @ likelihood_gk)
        return fewer[..., which_u.ravel()]

    def moments_again(self, again_u: ArrayLike, share_bg: Floats) -> tuple[Floats, Floats]:
        """[rows, units]: mean and variance of the share of `again_u` further draws that hit each unit."""
        a, b = _A + self.hits_u[:, None], _B + (self.n_u - self.hits_u)[:, None]
        again = np.broadcast_to(again_u, self.hits_u.shape)[:, None]
        mean_ug = a / (a + b)
        square_ug = mean_ug * ((1 - mean_ug) * (a + b + again) / (again * (a + b + 1)) + mean_ug)
        weight_ug = self.likelihood_kg[self.kind_u]
        total_bu = share_bg @ weight_ug.T
        mean_bu, square_bu = (share_bg @ (weight_ug * values).T / total_bu for values in (mean_ug, square_ug))
        return mean_bu, square_bu - mean_bu**2

    def draw(self, rows: int, rng: np.random.Generator) -> Floats:
        """[rows, units]: rates from the units' posteriors."""
        return self._drawn(np.broadcast_to(self.share_g, (rows, self.share_g.size)), rng)

    def draw_weighted(self, weight_bu: Floats, rng: np.random.Generator) -> Floats:
        """The same, each row after a few rounds of EM with its own weights of the units."""
        return self._drawn(self.refitted(weight_bu), rng)

    def refitted(self, weight_bu: Floats) -> Floats:
        """[rows, components]: the shares after a few rounds of EM with each row's weights of the units."""
        order = np.argsort(self.kind_u, kind="stable")
        starts = np.searchsorted(self.kind_u[order], np.arange(len(self.likelihood_kg)))
        times_bk = np.add.reduceat(weight_bu[:, order], starts, axis=1)
        start_bg = np.broadcast_to(self.share_g, (len(weight_bu), self.share_g.size))
        return _em(self.likelihood_kg, times_bk, start_bg, _MORE_ROUNDS)

    def _drawn(self, share_bg: Floats, rng: np.random.Generator) -> Floats:
        left_bu = rng.random((len(share_bg), self.hits_u.size)) * (share_bg @ self.likelihood_kg.T)[:, self.kind_u]
        component_bu = np.zeros(left_bu.shape, np.int64)
        for g in range(_MEAN.size - 1):  # a loop here: [rows, units, components] would not fit
            left_bu -= share_bg[:, g, None] * self.likelihood_kg[self.kind_u, g]
            component_bu += left_bu > 0
        return rng.beta(_A[component_bu] + self.hits_u, _B[component_bu] + self.n_u - self.hits_u)


def _em(likelihood_kg: Floats, times_bk: Floats, share_bg: Floats, rounds: int) -> Floats:
    """Shares of the components that make the hits likelier, round by round, for each row of weights of the kinds."""
    total_b1 = times_bk.sum(axis=1, keepdims=True)
    for _ in range(rounds):
        evidence_bk = np.maximum(share_bg @ likelihood_kg.T, 1e-300)
        share_bg = share_bg * ((times_bk / evidence_bk) @ likelihood_kg) / total_b1
    return share_bg
