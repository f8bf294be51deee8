"""Comparisons of pools in which every text is hostile."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from offleash.eval.comparison.compare import compare
from offleash.eval.comparison.result import Comparison
from offleash.eval.pool.pool import Pool
from offleash.eval.pool.testing import make_pool
from offleash.eval.problem import Problem

HOSTILE = (
    "</script><img src=x onerror=alert(1)><svg onload=alert(2)> & \"q\" 'r' | a | b\n# head\n```\n"
    "[x](javascript:alert(3)) "
    "![i](http://evil.example/p.png) www.evil.example @someone \\input{/etc/passwd} $x_1^2$ 100% #1 ~ {}\r\n"
    "\x1b[31mred\x1b[0m \x00 \u202eevil\u202c \u2028 </pre></body>"
)


def _hostile_pool(
    path: Path, hits: list[int], n: int, answers: list[tuple[str, ...] | None] | None = None, **spec: Any
) -> Pool:
    """Problems, answers and completions all hostile; the first draws of each problem are hits."""
    problems = [Problem(f"p{i} {HOSTILE[:40]}", HOSTILE, f"g{i}{HOSTILE[40:80]}", {"subject": HOSTILE[:20]})
                for i in range(len(hits))]  # fmt: skip
    settings = {"task": "sums & more_|%", "model": f"org/{HOSTILE[:30]}", **spec}
    pool = make_pool(path, None, n, problems, answers, **settings)
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
    _hostile_pool(root / "base" / "one", [4, 2, 0, 3], 8)
    _hostile_pool(root / "base" / "two", [4, 2, 0, 3], 8, listed, task="two")
    for step, hits in ((50, [4, 1, 0, 3]), (100, [8, 0, 1, 3])):
        _hostile_pool(root / "run" / f"step-{step}" / "one", hits, 8)
        _hostile_pool(root / "run" / f"step-{step}" / "two", hits, 8, listed, task="two")
    return root


@pytest.fixture(scope="module")
def series(pools: Path) -> Comparison:
    return compare(pools / "base", pools / "run", resamples=50)


@pytest.fixture(scope="module")
def pair(pools: Path) -> Comparison:
    return compare(pools / "base" / "one", pools / "run" / "step-100" / "one", resamples=50)


@pytest.fixture
def hostile_pool() -> Callable[..., Pool]:
    return _hostile_pool
