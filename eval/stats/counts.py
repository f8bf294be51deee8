"""What counts of samples can be: whole, never negative, never more hits than draws.

Every estimator takes counts that somebody else made. Casting them to integers would turn 2.7 hits into 2, and NaN into
a number of nineteen digits; here they are refused, with the name of the argument.
"""

from numbers import Real

import numpy as np
from numpy.typing import ArrayLike, NDArray

from offleash.eval.errors import ConfigError

Ints = NDArray[np.int64]

_LARGEST = 2**53  # from here on a float may stand for several integers


def check_counts(name: str, counts: ArrayLike) -> Ints:
    """`counts` as integers, in the shape they came in."""
    given = np.asarray(counts)
    if given.dtype.kind in "biu":
        whole = given.astype(np.int64)
    elif given.dtype.kind == "f":
        exact = np.isfinite(given) & (given == np.floor(given)) & (np.abs(given) < _LARGEST)
        if not np.all(exact):
            raise ConfigError(f"{name} must hold whole numbers, got {given[~exact].flat[0]}")
        whole = given.astype(np.int64)
    else:
        raise ConfigError(f"{name} must hold whole numbers, got {given.dtype}")
    if np.any(whole < 0):
        raise ConfigError(f"{name} must not be negative, got {whole.min()}")
    return whole


def check_draws(
    name: str, hits_u: ArrayLike, n_u: ArrayLike, problem_u: NDArray | None = None, least: int = 1
) -> tuple[Ints, Ints]:
    """Hits and draws of each unit, as vectors of one length: no more hits than draws, and `least` draws or more.

    With `problem_u`, the units of a problem share its draws: they have the same n, and together no more hits than that.
    """
    hits, n = check_counts(f"{name} hits", hits_u), check_counts(f"{name} draws", n_u)
    if hits.ndim > 1 or n.ndim > 1 or (hits.shape != n.shape and hits.ndim and n.ndim):
        raise ConfigError(f"{name}: one count of hits and one of draws per unit, got shapes {hits.shape} and {n.shape}")
    hits, n = np.broadcast_arrays(hits, n)
    if np.any(n < least):
        raise ConfigError(f"{name} draws: every unit needs at least {least}, got {n.min()}")
    if np.any(hits > n):
        i = int(np.argmax(hits > n))
        raise ConfigError(f"{name} hits: {hits.flat[i]} hits in {n.flat[i]} draws (unit {i})")
    if problem_u is not None and hits.size:
        problems, index_u = np.unique(problem_u, return_inverse=True)
        n_p = np.zeros(len(problems), np.int64)
        n_p[index_u] = n
        if np.any(n_p[index_u] != n):
            i = int(np.argmax(n_p[index_u] != n))
            raise ConfigError(f"{name} draws: units of problem {problem_u[i]} share its draws, so n must be the same")
        hits_p = np.bincount(index_u, hits).astype(np.int64)
        if np.any(hits_p > n_p):
            p = int(np.argmax(hits_p > n_p))
            raise ConfigError(f"{name} hits: {hits_p[p]} hits of problem {problems[p]}'s units in {n_p[p]} draws")
    return hits, n


def check_hits(base_hits_u: ArrayLike, policy_hits_u: ArrayLike) -> tuple[Ints, Ints]:
    """Hits of the same units in two pools, as integer vectors."""
    base, policy = check_counts("base hits", base_hits_u), check_counts("policy hits", policy_hits_u)
    if base.shape != policy.shape or base.ndim != 1:
        raise ConfigError(f"hits must be two vectors over the same units, got shapes {base.shape} and {policy.shape}")
    return base, policy


def check_problems(problem_u: ArrayLike | None, units: int) -> NDArray:
    """The problem of each unit; None makes each unit its own problem."""
    problem = np.arange(units) if problem_u is None else np.asarray(problem_u)
    if problem.shape != (units,):
        raise ConfigError(f"problem_u has shape {problem.shape} for {units} units: one entry per unit is needed")
    if problem.dtype.kind == "f" and not np.all(np.isfinite(problem)):
        raise ConfigError("problem_u must name the problem of every unit, got NaN or infinity")
    return problem


def check_threshold(threshold: int) -> None:
    """Hits from which a unit is in support."""
    if isinstance(threshold, bool) or not isinstance(threshold, Real) or not threshold >= 1 or threshold % 1:
        raise ConfigError(f"threshold must be a whole number of hits, 1 or more; got {threshold}")


def check_budgets(ks: ArrayLike) -> Ints:
    """Budgets k as an integer vector, each at least 1."""
    budget = np.atleast_1d(check_counts("k", ks))
    if np.any(budget < 1):
        raise ConfigError(f"every k must be at least 1, got {budget.min()}")
    return budget
