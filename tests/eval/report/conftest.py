"""Comparisons of pools in which every text is hostile."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from offleash.eval.comparison.compare import compare
from offleash.eval.comparison.result import Comparison
from offleash.eval.fingerprint import problems_fingerprint
from offleash.eval.pool.pool import Pool
from offleash.eval.pool.spec import PoolSpec
from offleash.eval.problem import Problem
from offleash.eval.sampling import Plan

HOSTILE = (
    "</script><img src=x onerror=alert(1)><svg onload=alert(2)> & \"q\" 'r' | a | b\n# head\n```\n"
    "[x](javascript:alert(3)) "
    "![i](http://evil.example/p.png) www.evil.example @someone \\input{/etc/passwd} $x_1^2$ 100% #1 ~ {}\r\n"
    "\x1b[31mred\x1b[0m \x00 \u202eevil\u202c \u2028 </pre></body>"
)


def _make_pool(
    path: Path, hits: list[int], n: int, answers: list[tuple[str, ...] | None] | None = None, **spec: Any
) -> Pool:
    """Problems, answers and completions all hostile; the first draws of each problem are hits."""
    problems = [Problem(f"p{i} {HOSTILE[:40]}", HOSTILE, f"g{i}{HOSTILE[40:80]}", {"subject": HOSTILE[:20]})
                for i in range(len(hits))]  # fmt: skip
    settings: dict[str, Any] = {
        "task": "sums & more_|%",
        "task_version": "1",
        "template": "t",
        "model": f"org/{HOSTILE[:30]}",
        "revision": "",
        "weights": str(path),
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "max_new_tokens": 8,
        "stop": (),
        "seed": 0,
        "plan": Plan(),
        "engine": "transformers",
        "dtype": "float32",
    }
    pool = Pool.create(
        path, PoolSpec(k=n, problems=problems_fingerprint(problems), **{**settings, **spec}), problems, answers
    )
    rows: list[tuple[Any, ...]] = []
    for p, problem in enumerate(problems):
        for i in range(n):
            right = problem.gold if answers is None else HOSTILE
            rows.append(
                (problem.id, i, right if i < hits[p] else f"w{i}", i < hits[p], "ok", 7, -3.5, -4.0, 0.5, HOSTILE)
            )
    names = ["problem_id", "index", "answer", "correct", "status", "tokens", "logprob", "base_logprob", "entropy"]
    names.append("completion")
    if rows:
        pool.append(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)))
    return pool


@pytest.fixture(scope="module")
def pools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("pools")
    listed: list[tuple[str, ...] | None] = [(HOSTILE, "other"), (HOSTILE,), (HOSTILE,), (HOSTILE,)]
    _make_pool(root / "base" / "one", [4, 2, 0, 3], 8)
    _make_pool(root / "base" / "two", [4, 2, 0, 3], 8, listed, task="two")
    for step, hits in ((50, [4, 1, 0, 3]), (100, [8, 0, 1, 3])):
        _make_pool(root / "run" / f"step-{step}" / "one", hits, 8)
        _make_pool(root / "run" / f"step-{step}" / "two", hits, 8, listed, task="two")
    return root


@pytest.fixture(scope="module")
def series(pools: Path) -> Comparison:
    return compare(pools / "base", pools / "run", resamples=50)


@pytest.fixture(scope="module")
def pair(pools: Path) -> Comparison:
    return compare(pools / "base" / "one", pools / "run" / "step-100" / "one", resamples=50)


@pytest.fixture
def make_pool() -> Callable[..., Pool]:
    return _make_pool
