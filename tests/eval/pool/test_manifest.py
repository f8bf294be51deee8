"""A pool grows: what it holds is kept, what was asked for is remembered, and each opener sees what it asked for."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offleash.eval.errors import PoolError
from offleash.eval.fingerprint import problems_fingerprint
from offleash.eval.lock import held
from offleash.eval.pool.ledger import Ledger
from offleash.eval.pool.manifest import Manifest
from offleash.eval.pool.pool import Pool
from offleash.eval.pool.testing import make_pool, make_problems, make_spec
from offleash.eval.problem import Problem
from offleash.eval.sampling import Plan
from tests.eval.pool.former import write_former

PROBLEMS = make_problems(6)


def asked(path: Path, problems: list[Problem], k: int, **changes: Any) -> Pool:
    return Pool.open_or_create(path, make_spec(problems, k, **changes), problems)


def draw_missing(pool: Pool) -> int:
    """Fill a pool with samples that are a function of (problem, index), as seeds make them."""
    pairs = [(name, int(i)) for name, left in zip(pool.problem_ids, pool.missing(), strict=True) for i in left]
    pool.append(
        {
            "problem_id": [name for name, _ in pairs],
            "index": [i for _, i in pairs],
            "answer": [f"{name}:{i % 3}" for name, i in pairs],
            "correct": [i % 3 == 0 for _, i in pairs],
            "status": ["ok"] * len(pairs),
            "completion": [f"{name}/{i}" for name, i in pairs],
        }
    )
    return len(pairs)


def content(pool: Pool) -> list[dict[str, Any]]:
    return pool.read(["problem_id", "index", "answer", "correct", "completion"]).to_pylist()


requests = st.lists(
    st.tuples(st.lists(st.integers(0, 5), min_size=1, max_size=6, unique=True), st.integers(1, 7)),
    min_size=1,
    max_size=6,
)


@settings(max_examples=25)
@given(asked_for=requests)
def test_grown_in_any_order_a_pool_shows_each_request_as_if_it_were_alone(
    asked_for: list[tuple[list[int], int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("grown")
    wanted: dict[str, int] = {}
    for numbers, k in asked_for:
        problems = [PROBLEMS[i] for i in numbers]
        pool = asked(path / "pool", problems, k)
        new = sum(max(0, k - wanted.get(p.id, 0)) for p in problems)
        assert draw_missing(pool) == new
        wanted |= {p.id: max(k, wanted.get(p.id, 0)) for p in problems}
        assert pool.is_complete
        alone = asked(path / f"alone-{len(list(path.iterdir()))}", problems, k)
        draw_missing(alone)
        assert content(pool) == content(alone)
        assert pool.hits().checksum() == alone.hits().checksum()
        assert (pool.spec.k, pool.spec.problems) == (k, problems_fingerprint(problems))
    whole = Pool.open(path / "pool")
    assert dict(zip(whole.problem_ids, whole.budget_p.tolist(), strict=True)) == wanted
    assert whole.is_complete
    assert whole.hits().n_p.tolist() == [wanted[name] for name in whole.problem_ids]
    assert whole.duplicates() == 0


def test_a_smaller_request_is_complete_and_deletes_nothing(tmp_path: Path) -> None:
    draw_missing(asked(tmp_path, PROBLEMS, 8))
    files = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    less = asked(tmp_path, [PROBLEMS[4], PROBLEMS[1]], 3)
    assert less.is_complete
    assert less.hits().n_p.tolist() == [3, 3]
    assert [problem.id for problem in less.problems] == ["p4", "p1"]
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == files
    assert Pool.open(tmp_path).hits().n_p.tolist() == [8] * 6


@pytest.mark.parametrize(
    ("changed", "named"), [({"gold": "7"}, "'p1' has another gold"), ({"prompt": "x"}, "'p1' has another prompt")]
)
def test_a_problem_that_changed_under_its_id_is_refused_by_name(
    tmp_path: Path, changed: dict[str, Any], named: str
) -> None:
    draw_missing(asked(tmp_path, PROBLEMS[:2], 2))
    before = (tmp_path / "pool.json").read_bytes()
    with pytest.raises(PoolError, match=named):
        asked(tmp_path, [PROBLEMS[0], replace(PROBLEMS[1], **changed), PROBLEMS[2]], 4)
    assert (tmp_path / "pool.json").read_bytes() == before
    assert asked(tmp_path, [replace(PROBLEMS[1], meta={"level": 3})], 2).is_complete  # no sample depends on it


def test_other_correct_answers_of_the_same_verifier_are_refused(tmp_path: Path) -> None:
    spec = make_spec(PROBLEMS[:1], 2)
    Pool.open_or_create(tmp_path, spec, PROBLEMS[:1], [("a", "b")])
    draw_missing(Pool.open(tmp_path))
    Pool.open_or_create(tmp_path, spec, PROBLEMS[:1], [("b", "a")])
    with pytest.raises(PoolError, match="'p0' has other correct answers"):
        Pool.open_or_create(tmp_path, spec, PROBLEMS[:1], [("a",)])


def test_the_cap_of_a_plan_that_stops_early_may_grow_and_its_successes_may_not_change(tmp_path: Path) -> None:
    problems, plan = PROBLEMS[:2], Plan(successes=2)
    pool = asked(tmp_path, problems, 4, plan=plan)
    row = {"answer": ["a"] * 4, "status": ["ok"] * 4, "problem_id": ["p0"] * 4, "index": [0, 1, 2, 3]}
    pool.append({**row, "correct": [False, True, False, True]})
    pool.append({**row, "correct": [False] * 4, "problem_id": ["p1"] * 4})
    assert Ledger(pool).is_complete
    grown = asked(tmp_path, problems, 8, plan=plan)
    assert [(b.problem, b.start, b.size) for b in Ledger(grown).blocks(8, 16)] == [(1, 4, 4)]
    assert Ledger(asked(tmp_path, problems, 3, plan=plan)).is_complete
    for other in (Plan(successes=3), Plan()):
        with pytest.raises(PoolError, match="plan: "):
            asked(tmp_path, problems, 8, plan=other)


def test_a_reader_of_before_does_not_see_what_came_later(tmp_path: Path) -> None:
    pool = asked(tmp_path, PROBLEMS[:2], 3)
    draw_missing(pool)
    whole, before = Pool.open(tmp_path), content(pool)
    draw_missing(asked(tmp_path, PROBLEMS, 9))
    assert content(pool) == before
    assert content(whole) == before
    assert (pool.is_complete, pool.duplicates()) == (True, 0)


def test_samples_that_pool_json_does_not_know_of_are_still_refused(tmp_path: Path) -> None:
    pool = asked(tmp_path, PROBLEMS[:2], 3)
    draw_missing(pool)
    small = (tmp_path / "pool.json").read_bytes()
    draw_missing(asked(tmp_path, PROBLEMS[:2], 9))
    (tmp_path / "pool.json").write_bytes(small)
    with pytest.raises(PoolError, match="index 3 does not belong"):
        Pool.open(tmp_path).hits()


# Pools of earlier formats


@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_pool_of_an_earlier_format_opens_and_grows(tmp_path: Path, version: int) -> None:
    asked(tmp_path, PROBLEMS[:2], 3)
    write_former(tmp_path, version)
    pool = asked(tmp_path, PROBLEMS[:2], 3)
    draw_missing(pool)
    assert Manifest.read(tmp_path).version == version  # an earlier Offleash can still read it
    created_as = Manifest.read(tmp_path).created_as
    grown = asked(tmp_path, PROBLEMS[:4], 5)
    assert draw_missing(grown) == 2 * 2 + 2 * 5
    now = Manifest.read(tmp_path)
    assert (now.version, now.created_as) == (4, created_as)
    assert content(Pool.open(tmp_path)) == content(grown)
    assert grown.hits().n_p.tolist() == [5] * 4


def test_a_pool_of_an_earlier_format_that_was_modified_is_refused(tmp_path: Path) -> None:
    asked(tmp_path, PROBLEMS[:2], 3)
    write_former(tmp_path, 3)
    text = (tmp_path / "pool.json").read_text()
    (tmp_path / "pool.json").write_text(text.replace('"k": 3', '"k": 2'))
    with pytest.raises(PoolError, match="changed after"):
        Pool.open(tmp_path)


# Folders


def test_a_pool_without_samples_does_not_block_other_settings(tmp_path: Path) -> None:
    asked(tmp_path, PROBLEMS, 10_000, weights="wrong model")
    pool = asked(tmp_path, PROBLEMS[:2], 3)
    assert (Pool.open(tmp_path).spec.weights, Pool.open(tmp_path).spec.k) == ("w", 3)
    draw_missing(pool)
    with pytest.raises(PoolError, match="weights: "):
        asked(tmp_path, PROBLEMS[:2], 3, weights="other")


def test_a_pool_that_somebody_is_about_to_sample_is_not_taken_away(tmp_path: Path) -> None:
    pool = asked(tmp_path, PROBLEMS[:2], 3)
    with held(tmp_path, "taken"):
        with pytest.raises(PoolError, match="weights: "):
            asked(tmp_path, PROBLEMS[:2], 3, weights="other")
        assert asked(tmp_path, PROBLEMS[:2], 2).spec.k == 2
        assert draw_missing(pool.again()) == 6


def test_samples_for_a_pool_that_was_made_anew_are_refused(tmp_path: Path) -> None:
    pool = asked(tmp_path, PROBLEMS[:2], 3)
    asked(tmp_path, PROBLEMS[:2], 3, weights="other")
    with pytest.raises(PoolError, match="replaced or judged again"):
        draw_missing(pool)
    assert Pool.open(tmp_path).read().num_rows == 0


@pytest.mark.parametrize("name", ["notes.txt", ".git", "scores", "pool.json.bak", "problems.2.parquet"])
def test_a_folder_with_other_files_is_refused_by_name_and_untouched(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir() if "." not in name[1:] else (tmp_path / name).write_text("mine")
    with pytest.raises(PoolError, match=f"holds other files .{name}"):
        asked(tmp_path, PROBLEMS, 2)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_an_empty_folder_and_one_that_a_dead_process_left_are_fine(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert asked(tmp_path / "empty", PROBLEMS, 2).spec.k == 2
    left = tmp_path / "left"
    asked(left, PROBLEMS, 2)
    (left / "pool.json").unlink()
    (left / ".lock").touch()
    (left / f".{'0' * 32}.1.host.tmp").touch()
    assert asked(left, PROBLEMS, 3).spec.k == 3


# kill -9

GROWER = textwrap.dedent(
    """
    import sys
    from offleash.eval.pool.pool import Pool
    from offleash.eval.pool.testing import make_problems, make_spec
    for size in range(1, 400):
        problems = make_problems(size)
        pool = Pool.open_or_create(sys.argv[1], make_spec(problems, 1 + size // 2), problems)
        pairs = [(name, int(i)) for name, left in zip(pool.problem_ids, pool.missing()) for i in left]
        pool.append({"problem_id": [name for name, _ in pairs], "index": [i for _, i in pairs],
                     "answer": [f"{name}:{i}" for name, i in pairs], "correct": [False] * len(pairs),
                     "status": ["ok"] * len(pairs)})
        print(size, flush=True)
    """
)


@pytest.mark.long
def test_a_pool_killed_while_it_grows_opens_and_goes_on(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    for _ in range(3):
        with subprocess.Popen([sys.executable, "-c", GROWER, str(tmp_path)], stdout=subprocess.PIPE, text=True) as life:
            assert life.stdout is not None
            life.stdout.readline()
            time.sleep(rng.uniform(0.0, 0.5))
            os.kill(life.pid, signal.SIGKILL)
        whole = Pool.open(tmp_path)
        assert whole.read(["answer"]).num_rows == int(whole.hits().n_p.sum())
        assert whole.duplicates() == 0
    again = asked(tmp_path, make_problems(20), 15)
    draw_missing(again)
    assert again.is_complete
    names = again.read(["problem_id", "index"]).to_pylist()
    assert names == [{"problem_id": f"p{p}", "index": i} for p in range(20) for i in range(15)]


def test_problems_written_for_a_growth_that_died_are_not_the_pools(tmp_path: Path) -> None:
    draw_missing(asked(tmp_path, PROBLEMS[:2], 3))
    before = (tmp_path / "pool.json").read_bytes()
    asked(tmp_path, PROBLEMS[:5], 3)
    (tmp_path / "pool.json").write_bytes(before)  # killed between the two files
    assert Pool.open(tmp_path).problem_ids == ("p0", "p1")
    other = Problem("new", "q", "g")
    grown = asked(tmp_path, [PROBLEMS[0], other], 3)
    assert Pool.open(tmp_path).problem_ids == ("p0", "p1", "new")
    assert draw_missing(grown) == 3


def test_pool_json_says_what_it_is_readably(tmp_path: Path) -> None:
    make_pool(tmp_path, hits=[1, 0], k=4)
    content = json.loads((tmp_path / "pool.json").read_text())
    assert (content["format"], content["budgets"], content["generation"]) == (4, [[2, 4]], 1)
    assert content["created_as"] == content["fingerprint"] == Pool.open(tmp_path).spec.fingerprint()
