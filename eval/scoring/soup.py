"""Weight interpolation: models between a policy and its base, for no training.

    theta = (1 - alpha) theta_policy + alpha theta_base

alpha = 0 is the policy and alpha = 1 the base. Between the two, interpolated weights often keep most of what training
gained and win back diversity that it lost (WiSE-FT, arXiv 2109.01903; for reasoning models arXiv 2504.10478). `late`
interpolates only the later half of the layers and what follows them, and leaves the rest to the policy (arXiv
2608.29188, which reports more coverage on countdown at the same pass@1, with an early checkpoint instead of the base).
Computed in float32 and stored in the policy's dtype.
"""

import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from shutil import rmtree
from typing import Any, NamedTuple

import numpy as np
import torch

from offleash.eval.engines.model import resolve_model
from offleash.eval.errors import ConfigError
from offleash.eval.scoring.teacher_forcing import load_model
from offleash.eval.stats.exact_support import EPSILONS, exact_support
from offleash.eval.stats.leash.tilt import leash_line


class Pair(NamedTuple):
    """Two models of one shape, and the policy's tokenizer."""

    base: Any
    policy: Any
    tokenizer: Any


class Point(NamedTuple):
    """One model of the curve; NSCR by floor, NaN where neither side has a unit above it."""

    alpha: float
    pass_at_1: float
    nscr: dict[float, float]
    leash_nscr: dict[float, float]
    """Of the KL-optimal reweighting of the base at this pass@1; NaN where there is none."""


def load_pair(base: str, policy: str) -> Pair:
    """Load both; adapters are merged. Raises ConfigError if their tokenizers or weights do not correspond."""
    sources = resolve_model(base), resolve_model(policy)
    words = [source.tokenizer.get_vocab() for source in sources if source.tokenizer is not None]
    if words[0] != words[1]:
        raise ConfigError(
            f"{base} and {policy} have different tokenizers ({len(words[0])} and {len(words[1])} tokens, not the same "
            "ones): only a model and what was trained from it can be interpolated"
        )
    models = [load_model(source) for source in sources]
    shapes = [{name: tuple(values.shape) for name, values in model.named_parameters()} for model in models]
    if shapes[0] != shapes[1]:
        name = next(n for n in sorted({*shapes[0], *shapes[1]}) if shapes[0].get(n) != shapes[1].get(n))
        found = " and ".join(str(shape.get(name, "missing")) for shape in shapes)
        raise ConfigError(
            f"{base} and {policy} have different shapes ({name}: {found}): only a model and what was trained from it "
            "can be interpolated"
        )
    return Pair(models[0], models[1], sources[1].tokenizer)


def chosen_names(names: Sequence[str], layers: str) -> set[str]:
    """The parameters to interpolate, from all of a model's in its order: embeddings, layers, final norm, head."""
    if layers == "all":
        return set(names)
    found = [re.match(r"(.*?\.)?(?:layers|h|blocks)\.(\d+)\.", name) for name in names]
    stacks = {match[1] for match in found if match}
    if len(stacks) != 1:
        raise ConfigError(f"--layers late needs a model with one stack of layers, got {len(stacks)}: use --layers all")
    half = (max(int(match[2]) for match in found if match) + 1) // 2
    first = next(i for i, match in enumerate(found) if match and int(match[2]) >= half)
    return set(names[first:])


@contextmanager
def interpolated(pair: Pair, alpha: float, layers: str = "all") -> Iterator[Any]:
    """Inside the block the policy's model has the interpolated weights, afterwards its own again."""
    check_alpha(alpha)
    own = {name: values.detach().clone() for name, values in pair.policy.named_parameters()}
    base = dict(pair.base.named_parameters())
    chosen = chosen_names(list(own), layers)
    with torch.no_grad():
        for name, values in pair.policy.named_parameters():
            if name in chosen:
                values.copy_((1 - alpha) * own[name].float() + alpha * base[name].to(values.device).float())
    try:
        yield pair.policy
    finally:
        with torch.no_grad():
            for name, values in pair.policy.named_parameters():
                values.copy_(own[name])


def exact_point(alpha: float, problem_u: np.ndarray, base_u: np.ndarray, here_u: np.ndarray) -> Point:
    """From the true probabilities of the same units under the base and under an interpolated model."""
    here = exact_support(base_u, here_u, problem_u, ks=(1,))
    line = leash_line(base_u, problem_u, here.pass_at_k[1], ks=(1,)).support
    nscr = {eps: here.units[eps].nscr for eps in EPSILONS}
    leash_nscr = {eps: math.nan if line is None else line.units[eps].nscr for eps in EPSILONS}
    return Point(alpha, here.pass_at_k[1], nscr, leash_nscr)


def save(model: Any, tokenizer: Any, folder: Path) -> None:
    """A folder that loads like any model; it appears complete or not at all."""
    made = folder.with_name(f".{folder.name}.partial")
    rmtree(made, ignore_errors=True)
    model.save_pretrained(made)
    tokenizer.save_pretrained(made)
    made.rename(folder)


def check_alpha(alpha: float) -> None:
    if not (math.isfinite(alpha) and 0 <= alpha <= 1):
        raise ConfigError(f"alpha must lie between 0 (the policy) and 1 (the base), got {alpha}")
