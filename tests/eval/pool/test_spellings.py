"""Spellings are counted as a plain loop would, in pools new and old, and matched between two pools."""

import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from offleash.eval.errors import PoolError
from offleash.eval.pool.pool import Pool
from offleash.eval.pool.rows import SCHEMA, Sample
from offleash.eval.pool.spellings import match_spellings, respelled
from offleash.eval.pool.testing import make_pool, make_problems, make_spec
from offleash.eval.problem import Verdict
from tests.eval.pool.former import write_former

K = 30
PROBLEMS = make_problems(3)
ANSWERS = [("1+2", "1*3"), ("2+3",), ("5",)]
TEXTS = {"1+2": ["1+2", "2+1"], "1*3": ["1*3", "3*1"], "2+3": ["2+3", "3+2"], "5": ["5"]}


def spelled_pool(path: Path, seed: int, last: int = 3) -> tuple[Pool, list[Sample]]:
    """Random samples in two parts; problems after `last` are never answered correctly."""
    rng = np.random.default_rng(seed)
    pool = make_pool(path, k=K, problems=PROBLEMS, answers=ANSWERS)
    samples = []
    for p, problem in enumerate(PROBLEMS):
        for index in range(K):
            answer = str(rng.choice(ANSWERS[p]))
            right = p < last and rng.random() < 0.3
            verdict = Verdict(answer, True, "ok", spelling=str(rng.choice(TEXTS[answer])))
            wrong = Verdict("9", False, "ok", spelling="9") if index % 2 else Verdict(None, False, "no_answer")
            samples.append(Sample.judged(problem.id, index, verdict if right else wrong))
    pool.append(samples[:40])
    pool.append(samples[40:])
    return pool, samples


def test_hits_of_spellings_are_those_of_a_loop_over_correct_samples(tmp_path: Path) -> None:
    pool, samples = spelled_pool(tmp_path / "pool", 0)
    found = pool.spelled()
    assert found is not None
    brute = Counter((int(s.problem_id[1:]), s.spelling, s.answer) for s in samples if s.correct)
    units = zip(found.hits.unit_problem.tolist(), found.hits.unit_answer, found.answer_u, strict=True)
    assert dict(zip(units, found.hits.unit_hits.tolist(), strict=True)) == brute
    assert list(zip(found.hits.unit_problem, found.hits.unit_answer, strict=True)) == sorted(
        (p, text) for p, text, _ in brute
    )
    assert found.hits.n_p.tolist() == [K] * 3
    assert found.hits.correct_p.tolist() == pool.hits().correct_p.tolist()
    assert pool.hits(level="spelling").unit_hits.tolist() == found.hits.unit_hits.tolist()
    assert pool.hits(limit=5, level="spelling").unit_hits.sum() == pool.hits(limit=5).correct_p.sum()


def test_two_pools_are_matched_over_the_spellings_of_either(tmp_path: Path) -> None:
    (base, of_base), (policy, of_policy) = (spelled_pool(tmp_path / str(i), i, last=3 - i) for i in (0, 1))
    one, other = match_spellings(*(pool.spelled() for pool in (base, policy)))  # type: ignore[arg-type]
    brute = [Counter((s.problem_id, s.spelling) for s in samples if s.correct) for samples in (of_base, of_policy)]
    units = sorted(brute[0].keys() | brute[1].keys())
    assert [(f"p{p}", text) for p, text in zip(one.hits.unit_problem, one.hits.unit_answer, strict=True)] == units
    assert one.hits.unit_answer == other.hits.unit_answer
    assert one.hits.unit_hits.tolist() == [brute[0][unit] for unit in units]
    assert other.hits.unit_hits.tolist() == [brute[1][unit] for unit in units]
    found = {s.problem_id: set() for s in of_policy}  # type: ignore[var-annotated]
    for s in of_policy:
        if s.correct:
            found[s.problem_id].add(s.answer)
    lost = [unit for unit in units if brute[0][unit] and not brute[1][unit]]
    still = [answer in found[f"p{p}"] for p, answer in zip(one.hits.unit_problem, one.answer_u, strict=True)]
    assert respelled(one, other).tolist() == [unit in lost and kept for unit, kept in zip(units, still, strict=True)]


def test_a_lost_order_of_a_kept_answer_is_respelled_and_a_lost_answer_is_not(tmp_path: Path) -> None:
    def pool(name: str, texts: list[tuple[str, str]]) -> Pool:
        made = make_pool(tmp_path / name, k=len(texts), problems=PROBLEMS[:1], answers=ANSWERS[:1])
        made.append([Sample("p0", i, answer, True, "ok", spelling=text) for i, (answer, text) in enumerate(texts)])
        return made

    base = pool("base", [("1+2", "1+2"), ("1+2", "2+1"), ("1*3", "3*1")])
    policy = pool("policy", [("1+2", "1+2"), ("1+2", "1+2"), ("1+2", "1+2")])
    one, other = match_spellings(*(side.spelled() for side in (base, policy)))  # type: ignore[arg-type]
    assert one.hits.unit_answer == ("1+2", "2+1", "3*1")
    assert respelled(one, other).tolist() == [False, True, False]


def test_pools_of_other_problems_are_not_matched(tmp_path: Path) -> None:
    one, _ = spelled_pool(tmp_path / "one", 0)
    other = make_pool(tmp_path / "other", hits=[1, 1], k=2)
    other_spelled = other.hits(level="spelling")
    assert other.spelled() is None
    assert len(other_spelled.unit_hits) == 0
    spelled = one.spelled()
    assert spelled is not None
    with pytest.raises(PoolError, match="different problems"):
        match_spellings(spelled, type(spelled)(other_spelled, ()))


def old_part(pool: Pool, columns: dict[str, list[Any]]) -> None:
    """A part as format 2 wrote it: no columns `spelling` and `truncated`."""
    schema = pa.schema([item for item in SCHEMA if item.name not in ("spelling", "truncated")])
    count = len(columns["problem_id"])
    arrays = [pa.array(columns.get(item.name, [None] * count), item.type) for item in schema]
    stamp = {b"offleash.spec": pool.spec.former_fingerprint().encode()}
    path = pool.path / f"samples-{time.time_ns():020d}-0123456789ab.parquet"
    pq.write_table(pa.Table.from_arrays(arrays, schema=schema.with_metadata(stamp)), path)


def test_a_pool_of_format_2_opens_without_spellings_and_continues_with_them(tmp_path: Path) -> None:
    path = tmp_path / "old"
    Pool.create(path, make_spec(PROBLEMS[:1], 4), PROBLEMS[:1], ANSWERS[:1])
    write_former(path, 2)
    pool = Pool.open(path)
    old = {"problem_id": ["p0"] * 2, "index": [0, 1], "answer": ["1+2", None], "correct": [True, False]}
    old_part(pool, {**old, "status": ["ok", "no_answer"]})
    assert pool.spelled() is None
    assert pool.hits().unit_hits.tolist() == [1, 0]
    assert pool.read(["index", "spelling"])["spelling"].to_pylist() == [None, None]
    pool.append([Sample("p0", i, "1*3", True, "ok", spelling="3*1") for i in (2, 3)])
    assert pool.is_complete
    assert pool.hits().unit_hits.tolist() == [1, 2]
    assert pool.read(["spelling"])["spelling"].to_pylist() == [None, None, "3*1", "3*1"]
    spelled = pool.spelled()
    assert spelled is not None
    assert (spelled.hits.unit_answer, spelled.hits.unit_hits.tolist()) == (("3*1",), [2])
