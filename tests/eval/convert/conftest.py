"""Files as other systems write them, and the pools that are made of them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from offleash.eval.convert.importer import Imported, import_samples
from offleash.eval.pool.pool import Pool
from offleash.eval.stats.passk import pass_at_k


@pytest.fixture
def write_lines(tmp_path: Path) -> Callable[..., Path]:
    """A JSONL file; a string is a line as it is."""

    def write(name: str, rows: list[Any]) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = [row if isinstance(row, str) else json.dumps(row, ensure_ascii=False) for row in rows]
        path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
        return path

    return write


@pytest.fixture
def pool_of(tmp_path: Path) -> Callable[..., tuple[Imported, Pool]]:
    """What was imported, and the pool, of files given to `import_samples`."""

    def make(paths: Path | list[Path], name: str = "pool", **options: Any) -> tuple[Imported, Pool]:
        made = import_samples(paths, tmp_path / name, **options)
        return made, Pool.open(tmp_path / name)

    return make


@pytest.fixture
def pass_at_1() -> Callable[[Pool], dict[str, float]]:
    """pass@1 of each problem, by its prompt."""

    def of(pool: Pool) -> dict[str, float]:
        hits = pool.hits()
        values = pass_at_k(hits.correct_p, hits.n_p, [1])[:, 0].tolist()
        prompts = [problem.prompt if isinstance(problem.prompt, str) else problem.id for problem in pool.problems]
        return dict(zip(prompts, values, strict=True))

    return of
