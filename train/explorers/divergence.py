"""How far the policy has moved from the base on a token that the base drew: lp and lb are its two log-probabilities.

With u = exp(lp - lb), the mean over the base's own tokens is, for

    forward   u - ln u - 1                      KL(base || policy), in the low-variance form k3
    js        u ln u - (u + 1) ln((u + 1) / 2)  twice the Jensen-Shannon divergence
    nll       -lp                               the cross-entropy: forward KL up to a constant, and no base is needed

The first two are generators of f-divergences (Li et al., arXiv 2509.07430): 0, and least, at lp = lb. The tokens
rehearsed are of correct samples only, which is not the base's distribution: forward and js hold each at its base
probability even so, while nll raises them all.
"""

from collections.abc import Callable

import torch


def forward_k3(lp: torch.Tensor, lb: torch.Tensor) -> torch.Tensor:
    """Gradient in lp: u - 1."""
    return (lp - lb).exp() - (lp - lb) - 1


def js(lp: torch.Tensor, lb: torch.Tensor) -> torch.Tensor:
    """Gradient in lp: u ln(2 u / (u + 1))."""
    u = (lp - lb).exp()
    return u * (lp - lb) - (u + 1) * ((u + 1) / 2).log()


def nll(lp: torch.Tensor, lb: torch.Tensor) -> torch.Tensor:
    """Gradient in lp: -1, whatever the base says."""
    return -lp


DIVERGENCES: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "forward": forward_k3,
    "js": js,
    "nll": nll,
}
