"""Small pools for tests, without a model: of the library itself and of code that reads pools."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from offleash.eval.fingerprint import problems_fingerprint
from offleash.eval.pool.pool import Pool
from offleash.eval.pool.spec import PoolSpec
from offleash.eval.pool.store import Answers
from offleash.eval.problem import Problem
from offleash.eval.sampling import Plan

WRONG = "wrong"


def make_pool(
    path: str | Path,
    hits: Sequence[int] | None = None,
    k: int = 8,
    problems: Sequence[Problem] | None = None,
    answers: Answers | None = None,
    **changes: Any,
) -> Pool:
    """A pool of k samples per problem, of which the first `hits[i]` of problem i are correct; None: no samples yet.

    A correct sample gives the first of the problem's `answers` where they are listed, its gold otherwise. `changes` are
    fields of the pool's `PoolSpec`. Pools in different folders have different weights.

    >>> pool = make_pool("pool", hits=[2, 0], k=4, temperature=0.6)
    >>> pool.hits().correct_p.tolist(), pool.spec.temperature
    ([2, 0], 0.6)
    """
    problems = make_problems(len(hits or [0])) if problems is None else problems
    pool = Pool.create(path, make_spec(problems, k, **{"weights": str(path), **changes}), problems, answers)
    if hits is not None:
        right = [listed[0] if listed else p.gold for p, listed in zip(problems, pool.answers, strict=True)]
        problem_r, index_r = np.divmod(np.arange(len(problems) * k), k)
        correct_r = index_r < np.asarray(hits)[problem_r]
        pool.append(
            {
                "problem_id": [problems[p].id for p in problem_r],
                "index": index_r,
                "answer": [right[p] if hit else WRONG for p, hit in zip(problem_r, correct_r, strict=True)],
                "correct": correct_r,
                "status": ["ok"] * len(problem_r),
            }
        )
    return pool


def make_problems(count: int) -> list[Problem]:
    """Sums with the ids p0, p1, ..."""
    return [Problem(f"p{i}", f"{i} + {i} =", str(2 * i)) for i in range(count)]


def make_spec(problems: Sequence[Problem], k: int, **changes: Any) -> PoolSpec:
    """Plain sampling of a model that does not exist; `changes` are fields."""
    spec = PoolSpec(
        task="sums",
        task_version="1",
        problems=problems_fingerprint(problems),
        template="t",
        model="m",
        revision="",
        weights="w",
        temperature=1.0,
        top_p=1.0,
        top_k=0,
        min_p=0.0,
        repetition_penalty=1.0,
        max_new_tokens=8,
        stop=(),
        seed=0,
        k=k,
        plan=Plan(),
        engine="transformers",
        dtype="float32",
    )
    return replace(spec, **changes)
