"""Parts of several machines become the pool that one machine would have drawn."""

import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from offleash.eval.errors import ConfigError, PoolError
from offleash.eval.pool.merge import merge_pools
from offleash.eval.pool.pool import Pool
from offleash.eval.pool.testing import make_problems, make_spec
from offleash.eval.problem import Problem

PROBLEMS = make_problems(5)
COLUMNS = ["problem_id", "index", "answer", "correct", "status", "tokens", "logprob", "completion"]


def part(path: Path, problems: list[Problem], indices: range, k: int | None = None, **changes: Any) -> Path:
    """Samples whose content is a function of (problem, index)."""
    pool = Pool.open_or_create(path, make_spec(problems, k or indices.stop, **changes), problems)
    pairs = [(problem.id, i) for problem in problems for i in indices]
    pool.append(
        {
            "problem_id": [name for name, _ in pairs],
            "index": [i for _, i in pairs],
            "answer": [f"{name}:{i % 3}" for name, i in pairs],
            "correct": [i % 3 == 0 for _, i in pairs],
            "status": ["ok"] * len(pairs),
            "completion": [f"{name}/{i}" for name, i in pairs],
            "logprob": [-float(i) for _, i in pairs],
        }
    )
    return path


def content(path: Path) -> list[dict[str, Any]]:
    return Pool.open(path).read(COLUMNS).to_pylist()


def files(path: Path) -> dict[str, int]:
    return {file.name: file.stat().st_mtime_ns for file in path.iterdir()}


def test_merged_in_any_order_it_is_the_pool_drawn_at_once(tmp_path: Path) -> None:
    whole = part(tmp_path / "whole", PROBLEMS, range(8))
    parts = [
        part(tmp_path / "a", PROBLEMS[:2], range(8)),
        part(tmp_path / "b", PROBLEMS[2:], range(5)),
        part(tmp_path / "c", PROBLEMS[2:], range(3, 8)),
    ]
    before = [files(path) for path in parts]
    for number, order in enumerate(permutations(parts)):
        merged = merge_pools(tmp_path / f"out-{number}", order)
        assert merged.pool.is_complete
        assert (merged.added, merged.shared) == (40, 3 * 2)
        assert sorted(map(str, content(merged.pool.path))) == sorted(map(str, content(whole)))
        assert merged.pool.spec.fingerprint() == Pool.open(whole).spec.fingerprint()
        assert merged.pool.duplicates() == 0
    assert [files(path) for path in parts] == before


def test_into_an_existing_pool_and_again_and_what_is_asked_for_of_each_problem_is_kept(tmp_path: Path) -> None:
    out = part(tmp_path / "out", PROBLEMS[:1], range(8))
    more = part(tmp_path / "more", PROBLEMS[1:3], range(2), k=3)
    merged = merge_pools(out, [out, more])
    assert (merged.added, merged.shared) == (4, 0)
    assert merged.pool.budget_p.tolist() == [8, 3, 3]
    assert [len(left) for left in merged.pool.missing()] == [0, 1, 1]
    assert merge_pools(out, [more])[1:] == (0, 4)


@pytest.mark.parametrize(
    ("changes", "named"),
    [({"seed": 1}, "seed: 0 -> 1"), ({"weights": "v"}, "weights"), ({"task_version": "2"}, "offleash rejudge")],
)
def test_pools_of_another_identity_are_refused_naming_the_setting(
    tmp_path: Path, changes: dict[str, Any], named: str
) -> None:
    one, other = part(tmp_path / "a", PROBLEMS, range(2)), part(tmp_path / "b", PROBLEMS, range(2), **changes)
    with pytest.raises(PoolError, match=named):
        merge_pools(tmp_path / "out", [one, other])
    assert not (tmp_path / "out").exists()


def test_samples_and_problems_that_disagree_are_refused_by_name(tmp_path: Path) -> None:
    one = part(tmp_path / "a", PROBLEMS, range(4))
    other = part(tmp_path / "b", PROBLEMS[1:], range(3, 6))
    row = {"problem_id": ["p0"], "index": [0], "answer": ["x"], "correct": [False], "status": ["ok"]}
    third = Pool.open_or_create(tmp_path / "c", make_spec(PROBLEMS, 4), PROBLEMS)
    third.append({**row, "completion": ["another one"]})
    with pytest.raises(PoolError, match="sample 0 of problem 'p0'"):
        merge_pools(tmp_path / "out", [one, other, third.path])
    changed = part(tmp_path / "d", [Problem("p0", "0 + 0 =", "1")], range(2))
    with pytest.raises(PoolError, match="'p0' has another gold"):
        merge_pools(tmp_path / "out", [one, changed])
    assert not (tmp_path / "out").exists()


def test_a_folder_with_other_files_and_nothing_to_merge_are_refused(tmp_path: Path) -> None:
    one = part(tmp_path / "a", PROBLEMS, range(2))
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").touch()
    with pytest.raises(PoolError, match=r"thesis\.tex"):
        merge_pools(tmp_path / "out", [one])
    with pytest.raises(ConfigError, match="nothing to merge"):
        merge_pools(tmp_path / "new", [])
    with pytest.raises(PoolError, match="nowhere"):
        merge_pools(tmp_path / "new", [one, tmp_path / "nowhere"])
    assert not (tmp_path / "new").exists()


LIFE = textwrap.dedent(
    """
    import sys, time
    from offleash.eval.pool import merge
    from offleash.eval.pool.pool import Pool
    append = Pool.append
    def slowly(self, rows):
        time.sleep(0.02)
        return append(self, rows)
    Pool.append = slowly
    print("ready", flush=True)
    merge.merge_pools(sys.argv[1], sys.argv[2:])
    """
)


@pytest.mark.long
def test_killed_in_the_middle_the_same_merge_ends_with_the_same_pool(tmp_path: Path) -> None:
    parts = [str(part(tmp_path / f"part-{i}", PROBLEMS, range(3 * i, 3 * i + 3))) for i in range(12)]
    out = tmp_path / "out"
    for seconds in (0.05, 0.1, 0.12):
        with subprocess.Popen(
            [sys.executable, "-c", LIFE, str(out), *parts], stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(seconds)
            os.kill(process.pid, signal.SIGKILL)
        if (out / "pool.json").exists():
            assert Pool.open(out).duplicates() == 0
    assert merge_pools(out, parts).pool.is_complete
    assert content(out) == content(part(tmp_path / "whole", PROBLEMS, range(36)))


def test_a_source_inside_another_disk_or_gone_afterwards_is_not_needed(tmp_path: Path) -> None:
    one = part(tmp_path / "a", PROBLEMS, range(2))
    merge_pools(tmp_path / "out", [one])
    shutil.rmtree(one)
    assert Pool.open(tmp_path / "out").is_complete
