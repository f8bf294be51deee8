"""Pools of random samples, and short ways to compare them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from offleash.eval.comparison.compare import compare
from offleash.eval.comparison.result import Comparison, PolicyResult, Support
from offleash.eval.pool.pool import Pool
from offleash.eval.pool.testing import make_spec
from offleash.eval.problem import Problem

FAST: dict[str, Any] = {"resamples": 100, "examples": 3}


def make_problems(count: int, domains: Sequence[str] = ()) -> list[Problem]:
    meta = [{"domain": domains[i % len(domains)]} if domains else {} for i in range(count)]
    return [Problem(f"p{i}", f"{i} + {i} =", str(2 * i), meta[i]) for i in range(count)]


def random_rows(problems: Sequence[Problem], k: int, seed: int, rate: float = 0.2) -> dict[str, list[Any]]:
    """Samples of every (problem, index), with everything an engine may store."""
    rng = np.random.default_rng(seed)
    rows: dict[str, list[Any]] = {
        name: []
        for name in (
            "problem_id",
            "index",
            "answer",
            "correct",
            "status",
            "tokens",
            "logprob",
            "base_logprob",
            "entropy",
        )
    }
    for p, problem in enumerate(problems):
        for index in range(k):
            correct = bool(rng.random() < rate * (p % 4))
            answer = problem.gold if correct else [None, "w1", "w2", "w3"][rng.integers(4)]
            tokens = int(rng.integers(1, 20))
            scored = index % 2 == 0
            row = (
                problem.id,
                index,
                answer,
                correct,
                "ok" if answer is not None else ["no_answer", "truncated"][rng.integers(2)],
                tokens,
                -tokens * rng.random() if scored else None,
                -tokens * rng.random() if scored else None,
                rng.random() if scored else None,
            )
            for name, value in zip(rows, row, strict=True):
                rows[name].append(value)
    return rows


def random_pool(
    path: Path, problems: Sequence[Problem], k: int, seed: int, **changes: Any
) -> tuple[Pool, dict[str, Any]]:
    pool = Pool.create(path, make_spec(problems, k, **{"weights": str(seed), **changes}), problems)
    rows = random_rows(problems, k, seed)
    half = len(rows["index"]) // 2
    pool.append({name: values[half:] for name, values in rows.items()})
    pool.append({name: values[:half] for name, values in rows.items()})
    return pool, rows


def compared(base: Path, *policies: Path, **options: Any) -> Comparison:
    return compare(base, policies, **FAST | options)


def one(comparison: Comparison) -> PolicyResult:
    (result,) = comparison.policies
    return result


def cells(support: Support) -> tuple[int, ...]:
    """P, E, S, O as the paper orders them."""
    return tuple(round(support.estimates[name].value) for name in ("preserved", "expanded", "shrunk", "out"))
