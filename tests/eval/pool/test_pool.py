"""A pool keeps every sample once, whatever happens to its writers, and counts them as a plain loop would."""

import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from offleash.eval.errors import PoolError
from offleash.eval.fingerprint import problems_fingerprint
from offleash.eval.pool.pool import Pool
from offleash.eval.pool.rows import Sample
from offleash.eval.pool.spec import PoolSpec
from offleash.eval.pool.testing import make_pool, make_spec
from offleash.eval.problem import Problem
from offleash.eval.sampling import Plan
from tests.eval.pool.former import write_former

PROBLEMS = [Problem(f"p{i}", f"{i} + {i} =", str(2 * i), {"level": i}) for i in range(5)]
SPEC = make_spec(PROBLEMS, 40, stop=("\n",))


def rows(pairs: list[tuple[int, int]], **columns: Any) -> dict[str, Any]:
    """Samples of (problem, index) pairs whose content is a function of the pair."""
    return {
        "problem_id": [f"p{p}" for p, _ in pairs],
        "index": [i for _, i in pairs],
        "answer": [None if i % 4 == 3 else str(i % 4) for _, i in pairs],
        "correct": [i % 4 < 2 for _, i in pairs],
        "status": ["no_answer" if i % 4 == 3 else "ok" for _, i in pairs],
        "completion": [f"{p}:{i}" for p, i in pairs],
        **columns,
    }


ALL = [(p, i) for p in range(5) for i in range(40)]


def pairs_of(pool: Pool) -> list[tuple[str, int]]:
    table = pool.read(["problem_id", "index"])
    return list(zip(table["problem_id"].to_pylist(), table["index"].to_pylist(), strict=True))


# What goes in comes out.


def test_samples_come_back_as_they_went_in_sorted_by_problem_and_index(tmp_path: Path) -> None:
    pool = Pool.create(tmp_path / "a" / "pool", SPEC, PROBLEMS)
    sample = Sample("p1", 1, "42", True, "ok", "boxed", 7, -3.25, -4.5, 0.125, "so 42")
    pool.append([Sample("p3", 0, None, False, "truncated"), sample, Sample("p1", 0, "1", False, "error")])
    pool.append(rows([(0, 2), (0, 1)]))
    pool = Pool.open(pool.path)
    assert pairs_of(pool) == [("p0", 1), ("p0", 2), ("p1", 0), ("p1", 1), ("p3", 0)]
    got = pool.read([item.name for item in fields(Sample)]).to_pylist()
    assert Sample(**got[3]) == sample
    assert Sample(**got[4]) == Sample("p3", 0, None, False, "truncated")


def test_problems_spec_and_listed_answers_come_back(tmp_path: Path) -> None:
    chat = Problem("chat", [{"role": "user", "content": "\ud800 odd"}], "g", {"tags": ["a"], "x": None})
    problems = [*PROBLEMS, chat]
    spec = replace(SPEC, problems=problems_fingerprint(problems), versions={"torch": "2"})
    answers = [("0", "zero"), None, (), None, None, ("g",)]
    Pool.create(tmp_path, spec, problems, answers)
    pool = Pool.open(tmp_path)
    assert pool.problems == problems
    assert pool.answers == answers
    assert pool.spec == spec
    assert pool.spec.versions == {"torch": "2"}
    assert pool.spec.created.startswith("20")


def test_numpy_and_arrow_columns_are_taken_and_nan_is_unknown(tmp_path: Path) -> None:
    pool = Pool.create(tmp_path, SPEC, PROBLEMS)
    codes = pa.DictionaryArray.from_arrays(pa.array([1, 0], pa.int8()), pa.array(["p0", "p1"], pa.large_string()))
    columns = {"problem_id": codes, "index": np.array([0, 1]), "answer": pa.array(["a", None])}
    pool.append(
        {**columns, "correct": np.array([True, False]), "status": np.array(["ok", "ok"]), "logprob": [0.5, np.nan]}
    )
    pool.append(pool.read(limit=1).slice(0, 0))
    pool.append(pa.table({**rows([(2, 0)]), "entropy": pa.array([float("nan")])}))
    assert pairs_of(pool) == [("p0", 1), ("p1", 0), ("p2", 0)]
    assert pool.read()["logprob"].to_pylist() == [None, 0.5, None]
    assert pool.read()["entropy"].null_count == 3


def test_completions_are_read_only_when_asked_for(tmp_path: Path) -> None:
    pool = Pool.create(tmp_path, SPEC, PROBLEMS)
    pool.append(rows([(0, 0), (1, 0)]))
    assert "completion" not in pool.read().column_names
    assert pool.read(["completion"], problem_ids=["p1"]).to_pylist() == [{"completion": "1:0"}]
    with pytest.raises(PoolError, match="colour"):
        pool.read(["colour"])
    with pytest.raises(PoolError, match="'p9'"):
        pool.read(problem_ids=["p9"])


def test_hostile_text_survives_and_lone_surrogates_are_replaced(tmp_path: Path) -> None:
    texts = [
        "a\0b",
        "🙂 é \u202e",
        "",
        "x" * 3_000_000,
        "\ud800",
        "a\udfffb",
        "\ud83d\ude00",
        "\ud800\ud800z",
        "\r\n\t",
    ]
    stored = [*texts[:4], "\ufffd", "a\ufffdb", "\U0001f600", "\ufffd\ufffdz", "\r\n\t"]
    pool = Pool.create(tmp_path, SPEC, PROBLEMS)
    pool.append(rows([(0, i) for i in range(len(texts))], completion=texts, answer=texts))
    table = pool.read(["answer", "completion"])
    assert table["completion"].to_pylist() == stored
    assert table["answer"].to_pylist() == stored


def test_an_empty_pool_has_no_samples_and_every_unit(tmp_path: Path) -> None:
    pool = Pool.create(tmp_path, SPEC, PROBLEMS, [("0", "1"), None, (), None, None])
    assert pool.append([]) is None
    assert pool.read().num_rows == 0
    assert pool.hits().n_p.tolist() == [0] * 5
    assert pool.hits().unit_answer == ("0", "1", None, None, None)
    assert len(pool.tally().class_count) == 0
    assert [len(indices) for indices in pool.missing()] == [40] * 5


# What is refused.


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"index": [40]}, "index 40"),
        ({"index": [-1]}, "index -1"),
        ({"index": [2**40]}, "'index'"),
        ({"index": [None]}, "index"),
        ({"problem_id": ["q"]}, "problem 'q'"),
        ({"status": ["fine"]}, "fine"),
        ({"correct": ["yes"]}, "'correct'"),
        ({"answer": [5]}, "'answer'"),
        ({"answer": ["a", "b"]}, "answer"),
        ({"colour": ["red"]}, "colour"),
        ({"completion": pa.array([b"\xff"]).view(pa.string())}, "'completion'"),
    ],
)
def test_rows_that_are_not_draws_of_the_pool_are_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    pool = Pool.create(tmp_path, SPEC, PROBLEMS)
    with pytest.raises(PoolError, match=message):
        pool.append(rows([(0, 0)], **change))
    assert not list(tmp_path.glob("samples-*"))


def test_an_append_that_repeats_itself_is_refused(tmp_path: Path) -> None:
    pool = Pool.create(tmp_path, SPEC, PROBLEMS)
    with pytest.raises(PoolError, match=r"'p1' .* 7"):
        pool.append(rows([(1, 7), (0, 7), (1, 7)]))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", 0.6),
        ("top_k", 50),
        ("stop", ()),
        ("weights", "v"),
        ("seed", 1),
        ("task_version", "2"),
        ("plan", Plan(successes=3)),
    ],
)
def test_another_spec_is_refused_naming_the_field_and_both_values(tmp_path: Path, field: str, value: Any) -> None:
    Pool.create(tmp_path, SPEC, PROBLEMS).append(rows([(0, 0)]))
    other = replace(SPEC, **{field: value})
    assert other.fingerprint() != SPEC.fingerprint()
    with pytest.raises(PoolError) as caught:
        Pool.open_or_create(tmp_path, other, PROBLEMS)
    old, new = (spec.to_json()[field] for spec in (SPEC, other))
    assert f"{field}: {old!r} -> {new!r}." in str(caught.value)


def test_every_compared_field_changes_the_fingerprint_and_no_other_does() -> None:
    for item in fields(PoolSpec):
        value = getattr(SPEC, item.name)
        special = {"plan": Plan(successes=1), "versions": {"x": 1}, "stop": ("x",)}
        changed = special.get(item.name) or type(value)(7)
        other = replace(SPEC, **{item.name: changed})
        recorded_only = item.name in ("model", "revision", "versions", "created", "problems", "k")
        assert (other.fingerprint() == SPEC.fingerprint()) is recorded_only, item.name
        assert (SPEC.differences(other) == []) is recorded_only, item.name
    same = replace(SPEC, temperature=1, stop=["\n"])
    assert same.fingerprint() == SPEC.fingerprint()
    with pytest.raises(PoolError, match="JSON"):
        replace(SPEC, temperature=float("nan"))


def test_the_same_spec_opens_again_and_recorded_fields_may_differ(tmp_path: Path) -> None:
    Pool.open_or_create(tmp_path, SPEC, PROBLEMS).append(rows([(0, 0)]))
    pool = Pool.open_or_create(tmp_path, replace(SPEC, versions={"torch": "9"}), PROBLEMS)
    assert pairs_of(pool) == [("p0", 0)]
    with pytest.raises(PoolError, match="already a pool"):
        Pool.create(tmp_path, SPEC, PROBLEMS)


def test_problems_that_cannot_be_told_apart_or_stored_are_refused(tmp_path: Path) -> None:
    def create(problems: list[Problem], answers: Any = None) -> None:
        Pool.create(tmp_path, replace(SPEC, problems=problems_fingerprint(problems)), problems, answers)

    with pytest.raises(PoolError, match="p0"):
        create([PROBLEMS[0], PROBLEMS[0]])
    with pytest.raises(PoolError, match="lone surrogate"):
        create([Problem("\ud800", "q", "g")])
    with pytest.raises(PoolError, match="p0"):
        create(PROBLEMS[:1], [("a", "a")])
    with pytest.raises(PoolError, match="5 problems"):
        create(PROBLEMS, [None])
    with pytest.raises(PoolError, match="JSON"):
        create([Problem("p", "q", "g", {"image": object()})])
    with pytest.raises(PoolError, match="problems_fingerprint"):
        Pool.create(tmp_path, SPEC, PROBLEMS[:2])
    assert not (tmp_path / "pool.json").exists()


def test_opening_says_what_is_wrong_with_a_folder(tmp_path: Path) -> None:
    with pytest.raises(PoolError, match="does not exist"):
        Pool.open(tmp_path / "nowhere")
    with pytest.raises(PoolError, match="not a pool"):
        Pool.open(tmp_path)
    Pool.create(tmp_path, SPEC, PROBLEMS)
    path = tmp_path / "pool.json"
    text = path.read_text()
    for damaged, message in [
        (text[:50], "JSON"),
        ("[]", "does not describe a pool"),
        (text.replace('"format": 4', '"format": 5'), "format 5"),
        (text.replace('"budgets"', '"budget"'), "budgets"),
        (text.replace('"k": 40', '"k": 41'), "budgets"),
        (text.replace('"temperature": 1.0', '"temperature": 0.5'), "changed after"),
        (text.replace('"temperature": 1.0', '"temperature": null'), "cannot be read"),
        (text.replace('"temperature"', '"heat"'), "unknown.*heat"),
    ]:
        path.write_text(damaged)
        with pytest.raises(PoolError, match=message):
            Pool.open(tmp_path)


def test_a_folder_without_pool_json_is_made_again_unless_it_holds_samples(tmp_path: Path) -> None:
    (tmp_path / "problems.parquet").write_bytes(b"half")
    pool = Pool.open_or_create(tmp_path, SPEC, PROBLEMS)
    pool.append(rows([(0, 0)]))
    (tmp_path / "pool.json").unlink()
    with pytest.raises(PoolError, match=r"pool\.json"):
        Pool.open_or_create(tmp_path, SPEC, PROBLEMS)


def test_a_damaged_part_is_named(tmp_path: Path) -> None:
    pool = Pool.create(tmp_path, SPEC, PROBLEMS)
    part = pool.append(rows(ALL))
    assert part is not None
    whole = part.read_bytes()
    flipped = bytearray(whole)
    flipped[whole.index(b"p0") + 1] ^= 1  # in the dictionary of problem ids: only its checksum can tell
    for damaged in (b"", whole[:4], whole[: len(whole) // 2], whole[:-1], bytes(flipped)):
        part.write_bytes(damaged)
        with pytest.raises(PoolError, match=part.name):
            pool.hits()
        with pytest.raises(PoolError, match=part.name):
            pool.missing()


def test_of_forty_parts_the_first_written_counts_and_the_first_damaged_is_named(tmp_path: Path) -> None:
    pool = Pool.create(tmp_path, SPEC, PROBLEMS)
    for i in range(40):
        pool.append(rows([(0, i), (1, 0)], correct=[i % 3 == 0, i == 0]))
    assert [chunk.index_r.tolist() for chunk in pool.scan(["correct"])] == [[0, 0], *([i] for i in range(1, 40))]
    assert pool.hits().correct_p.tolist() == [14, 1, 0, 0, 0]
    parts = pool.parts.paths()
    for part in (parts[37], parts[23]):
        part.write_bytes(b"")
        with pytest.raises(PoolError, match=part.name):
            pool.hits()
    assert next(pool.scan(["correct"])).index_r.tolist() == [0, 0]  # what comes before it is readable


def test_a_part_of_another_pool_is_refused(tmp_path: Path) -> None:
    other = Pool.create(tmp_path / "other", replace(SPEC, seed=1), PROBLEMS)
    pool = Pool.create(tmp_path / "mine", SPEC, PROBLEMS)
    part = other.append(rows([(0, 0)]))
    assert part is not None
    stray = part.rename(pool.path / part.name)
    with pytest.raises(PoolError, match=part.name):
        pool.read()
    pq.write_table(pa.table({"a": [1]}), stray)
    with pytest.raises(PoolError, match=stray.name):
        pool.read()


def test_damaged_or_exchanged_problems_are_refused(tmp_path: Path) -> None:
    Pool.create(tmp_path / "a", SPEC, PROBLEMS)
    shorter = PROBLEMS[:2]
    Pool.create(tmp_path / "b", replace(SPEC, problems=problems_fingerprint(shorter)), shorter)
    (tmp_path / "b" / "problems.parquet").replace(tmp_path / "a" / "problems.parquet")
    with pytest.raises(PoolError, match=r"problems\.parquet"):
        Pool.open(tmp_path / "a").hits()
    with pytest.raises(PoolError, match=r"problems\.parquet"):
        Pool.open(tmp_path / "b").hits()


# What is left to draw, and what was drawn twice.


def test_missing_is_exactly_what_was_not_drawn(tmp_path: Path) -> None:
    pool = Pool.create(tmp_path, SPEC, PROBLEMS)
    rng = random.Random(0)
    drawn = rng.sample(ALL, 120)
    pool.append(rows(drawn[:70]))
    pool.append(rows(drawn[70:]))
    left = [(p, int(i)) for p, indices in enumerate(pool.missing()) for i in indices]
    assert left == sorted(set(ALL) - set(drawn))
    assert [(p, int(i)) for p, indices in enumerate(pool.missing(10)) for i in indices] == [
        x for x in left if x[1] < 10
    ]
    assert not pool.is_complete
    pool.append(rows(left))
    assert pool.is_complete
    assert pool.duplicates() == 0
    for k in (0, 41):
        with pytest.raises(PoolError, match="budget of 40"):
            pool.missing(k)


def test_a_draw_made_twice_counts_once_and_the_first_part_has_it(tmp_path: Path) -> None:
    pool = Pool.create(tmp_path, SPEC, PROBLEMS)
    pool.append(rows([(0, 1), (0, 0)], completion=["first", "first"]))
    pool.append(rows([(0, 2), (0, 1), (1, 0)], completion=["second"] * 3))
    pool.append(rows([(0, 1)], completion=["third"]))
    assert pairs_of(pool) == [("p0", 0), ("p0", 1), ("p0", 2), ("p1", 0)]
    assert pool.read(["completion"])["completion"].to_pylist() == ["first", "first", "second", "second"]
    assert pool.duplicates() == 2
    assert pool.hits().n_p.tolist() == [3, 1, 0, 0, 0]
    assert pool.tally().class_count.sum() == 4


# Counts.


def random_pool(path: Path, seed: int) -> tuple[Pool, dict[tuple[int, int], tuple[str | None, bool]]]:
    """A pool in many overlapping parts, and what it should hold."""
    rng = random.Random(seed)
    answers = [("0", "1", "never"), None, (), ("1",), None]
    pool = Pool.create(path, SPEC, PROBLEMS, answers)
    held: dict[tuple[int, int], tuple[str | None, bool]] = {}
    for _ in range(8):
        pairs = rng.sample(ALL, 45)
        verdicts = []
        for problem, index in pairs:
            answer = rng.choice(["0", "1", "2", "", None])
            listed = answers[problem]
            correct = rng.random() < 0.5 if listed is None else answer in listed
            verdicts.append((answer, correct))
            held.setdefault((problem, index), (answer, correct))
        pool.append(rows(pairs, answer=[v[0] for v in verdicts], correct=[v[1] for v in verdicts]))
    return pool, held


@pytest.mark.parametrize("limit", [None, 1, 13, 40])
def test_counts_equal_a_plain_loop(tmp_path: Path, limit: int | None) -> None:
    pool, held = random_pool(tmp_path, seed=limit or 0)
    kept = {pair: verdict for pair, verdict in held.items() if pair[1] < (limit or 40)}
    hits = pool.hits(limit)
    assert hits.problem_ids == tuple(problem.id for problem in PROBLEMS)
    assert hits.n_p.tolist() == [sum(p == q for p, _ in kept) for q in range(5)]
    assert hits.correct_p.tolist() == [sum(p == q and v[1] for (p, _), v in kept.items()) for q in range(5)]
    assert hits.unit_problem.tolist() == [0, 0, 0, 1, 3, 4]
    assert hits.unit_answer == ("0", "1", "never", None, "1", None)
    for problem, answer, count in zip(hits.unit_problem, hits.unit_answer, hits.unit_hits, strict=True):
        assert count == sum(p == problem and v[1] and answer in (None, v[0]) for (p, _), v in kept.items())
    counts = pool.tally(None if limit is None else np.full(5, limit))
    classes = zip(counts.class_problem.tolist(), counts.class_count.tolist(), strict=True)
    expected = Counter((p, answer) for (p, _), (answer, _) in kept.items())
    assert sorted(classes) == sorted((p, count) for (p, _), count in expected.items())
    assert (np.diff(counts.class_problem) >= 0).all()
    assert len(pool.read(limit=limit)) == len(kept)


@pytest.mark.parametrize("answer", ["7", None])
def test_a_correct_sample_off_the_list_is_an_inconsistency(tmp_path: Path, answer: str | None) -> None:
    pool = Pool.create(tmp_path, SPEC, PROBLEMS, [("0",), None, None, None, None])
    pool.append(rows([(0, 0), (1, 0)], answer=[answer, answer], correct=[True, True]))
    with pytest.raises(PoolError, match=rf"problem 'p0': 1 samples answering {answer!r}"):
        pool.hits()


@pytest.mark.long
def test_two_million_samples_are_counted_in_little_memory(tmp_path: Path) -> None:
    script = """
import resource, sys
import numpy as np, pyarrow as pa
from offleash.eval.pool.pool import *
from offleash.eval.problem import Problem
problems = [Problem(f"p{i}", "q", "g") for i in range(200)]
spec = PoolSpec.from_json({**eval(sys.argv[2]), "problems": problems_fingerprint(problems), "k": 10_000})
pool = Pool.create(sys.argv[1], spec, problems, [("0", "1", "2")] * 100 + [None] * 100)
ids, status = pa.array([p.id for p in problems]), pa.array(["ok"] * 500_000)
text = pa.array(["a completion " * 4] * 500_000)
for start in range(0, 10_000, 2_500):
    problem = np.tile(np.arange(200, dtype=np.int32), 2_500)
    index = np.repeat(np.arange(start, start + 2_500), 200)
    answer = (problem + index) % 7
    pool.append({"problem_id": pa.DictionaryArray.from_arrays(problem, ids), "index": index, "completion": text,
                 "answer": pa.array(answer).cast(pa.string()), "correct": answer < 3, "status": status})
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
del text
tally = pool.tally()
hits = tally.hits
grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
problem, index = np.divmod(np.arange(2_000_000), 10_000)
answer = (problem + index) % 7
assert (hits.n_p == 10_000).all() and (hits.correct_p == np.bincount(problem, answer < 3)).all()
classes = np.bincount(problem * 7 + answer).reshape(200, 7)
assert (np.sort(tally.class_count.reshape(200, 7)) == np.sort(classes)).all()
assert (hits.unit_hits[:300].reshape(100, 3) == classes[:100, :3]).all()
assert (hits.unit_hits[300:] == hits.correct_p[100:]).all()
assert grown < 300, f"{grown} MiB"
"""
    run_python(script, str(tmp_path), repr(SPEC.to_json()))


# Writers that die, race, or run out of disk.

WRITER = """
import sys
from offleash.eval.pool.pool import *
from offleash.eval.problem import Problem
problems = [Problem(f"p{i}", f"{i} + {i} =", str(2 * i), {"level": i}) for i in range(5)]
pool = Pool.open_or_create(sys.argv[1], PoolSpec.from_json(eval(sys.argv[2])), problems)
todo = [(p, int(i)) for p, indices in enumerate(pool.missing()) for i in indices]
print("ready", flush=True)
step = int(sys.argv[3])
for start in range(0, len(todo), step):
    pairs = todo[start : start + step]
    pool.append({"problem_id": [f"p{p}" for p, _ in pairs], "index": [i for _, i in pairs],
                 "answer": [str(i) for _, i in pairs], "correct": [False] * len(pairs), "status": ["ok"] * len(pairs),
                 "completion": [f"{p}:{i}" * 20000 for p, i in pairs]})
"""


def run_python(script: str, *args: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([sys.executable, "-c", script, *args], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return done


def writer(path: Path, spec: PoolSpec, step: int) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", WRITER, str(path), repr(spec.to_json()), str(step)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@pytest.mark.long
def test_a_writer_killed_again_and_again_loses_and_doubles_nothing(tmp_path: Path) -> None:
    rng = random.Random(1)
    kills = 0
    for _ in range(40):
        process = writer(tmp_path, SPEC, step=3)
        assert process.stdout is not None
        with process:
            if process.stdout.readline() and kills < 4:
                time.sleep(rng.uniform(0, 0.06))
                process.send_signal(signal.SIGKILL)
        kills += process.returncode == -signal.SIGKILL
        pool = Pool.open(tmp_path)
        assert pairs_of(pool) == sorted(set(pairs_of(pool)))  # readable after every kill
        if process.returncode == 0:
            break
    assert kills >= 3
    assert pool.is_complete
    assert pool.duplicates() == 0
    assert pairs_of(pool) == [(f"p{p}", i) for p, i in ALL]
    assert pool.read(["completion"])["completion"].to_pylist() == [f"{p}:{i}" * 20000 for p, i in ALL]


@pytest.mark.long
def test_two_writers_at_once_make_one_whole_pool(tmp_path: Path) -> None:
    both = [writer(tmp_path / "pool", SPEC, step=10) for _ in range(2)]
    for process in both:
        process.communicate(timeout=60)
        assert process.returncode == 0
    pool = Pool.open(tmp_path / "pool")
    written = sum(pq.read_metadata(part).num_rows for part in pool.path.glob("samples-*"))
    assert pool.is_complete
    assert pairs_of(pool) == [(f"p{p}", i) for p, i in ALL]
    assert pool.duplicates() == written - len(ALL)


def test_leftovers_of_the_dead_are_removed_and_those_of_the_living_are_not(tmp_path: Path) -> None:
    host, token = os.uname().nodename, "0" * 32
    dead = int(run_python("import os; print(os.getpid())").stdout)
    Pool.create(tmp_path, SPEC, PROBLEMS)
    ages = {
        f".{token}.{dead}.{host}.tmp": (120, False),
        f".{token[1:]}1.{dead}.{host}.tmp": (5, True),  # too fresh to judge
        f".{token}.{os.getpid()}.{host}.tmp": (120, True),
        f".{token}.{dead}.elsewhere.tmp": (120, True),
        f".{token[1:]}2.{dead}.elsewhere.tmp": (100_000, False),
        ".someone-elses.tmp": (100_000, True),
    }
    for name, (age, _) in ages.items():
        (tmp_path / name).write_bytes(b"half a part")
        os.utime(tmp_path / name, (time.time() - age, time.time() - age))
    assert Pool.open(tmp_path).read().num_rows == 0
    assert len(list(tmp_path.glob(".*.tmp"))) == len(ages)  # a reader touches nothing
    Pool.open_or_create(tmp_path, SPEC, PROBLEMS)
    assert {name: (tmp_path / name).exists() for name in ages} == {name: stays for name, (_, stays) in ages.items()}


def noise_rows(pairs: list[tuple[int, int]], size: int) -> dict[str, Any]:
    rng = random.Random(0)
    return rows(pairs, completion=[rng.randbytes(size // 2).hex() for _ in pairs])


def test_a_full_disk_leaves_no_half_part_and_one_clear_line(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", disk], capture_output=True)
    if mounted.returncode:
        pytest.skip("needs the right to mount a small file system")
    try:
        pool = Pool.create(disk / "pool", SPEC, PROBLEMS)
        pool.append(rows(ALL[:10]))
        before = sorted(path.name for path in pool.path.iterdir())
        with pytest.raises(PoolError, match=r"cannot write .*samples-.*: No space left on device; make room") as caught:
            pool.append(noise_rows(ALL[10:20], 100_000))
        assert "\n" not in str(caught.value)
        assert sorted(path.name for path in pool.path.iterdir()) == before
        pool.append(rows(ALL[10:]))  # room for a smaller part: the pool goes on
        assert Pool.open(pool.path).is_complete
        (disk / "rest").write_bytes(b"x" * (os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize))
        with pytest.raises(PoolError, match="No space left"):
            Pool.create(disk / "second", SPEC, PROBLEMS)
        with pytest.raises(PoolError, match="not a pool"):
            Pool.open(disk / "second")
    finally:
        subprocess.run(["umount", disk], check=True)


def test_a_file_size_limit_leaves_no_half_part_and_one_clear_line(tmp_path: Path) -> None:
    pool = Pool.create(tmp_path, SPEC, PROBLEMS)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, hard))  # Python ignores SIGXFSZ: the write itself fails
    try:
        with pytest.raises(PoolError, match=r"cannot write .*samples-.*: File too large") as caught:
            pool.append(noise_rows(ALL[:5], 100_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "\n" not in str(caught.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pool.json", "problems.parquet"]


def test_a_folder_that_cannot_be_made_or_is_gone_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(PoolError, match="Not a directory"):
        Pool.open_or_create(tmp_path / "file" / "pool", SPEC, PROBLEMS)
    with pytest.raises(PoolError, match="File exists"):
        Pool.open_or_create(tmp_path / "file", SPEC, PROBLEMS)
    pool = Pool.create(tmp_path / "pool", SPEC, PROBLEMS)
    assert pool.problem_ids
    pool.path.rename(tmp_path / "moved")
    with pytest.raises(PoolError, match=r"cannot write .*No such file"):
        pool.append(rows([(0, 0)]))


# Pools that older versions wrote.


OLD_COLUMNS = pa.schema(
    [
        pa.field("problem_id", pa.dictionary(pa.int32(), pa.string()), nullable=False),
        pa.field("index", pa.int32(), nullable=False),
        pa.field("answer", pa.large_string()),
        pa.field("correct", pa.bool_(), nullable=False),
        pa.field("status", pa.dictionary(pa.int32(), pa.string()), nullable=False),
        pa.field("step", pa.dictionary(pa.int32(), pa.string())),
        pa.field("tokens", pa.int32()),
        pa.field("logprob", pa.float64()),
        pa.field("base_logprob", pa.float64()),
        pa.field("entropy", pa.float64()),
        pa.field("completion", pa.large_string()),
    ]
)


def pool_of_format_1(path: Path, pairs: list[tuple[int, int]]) -> None:
    """As it was on disk: the extraction rule is in a column called `step`."""
    pool = Pool.create(path, SPEC, PROBLEMS)
    write_former(path, 1)
    columns = {**rows(pairs), "step": ["boxed" if i % 2 else None for _, i in pairs]}
    arrays = [pa.array(columns.get(item.name, [None] * len(pairs)), item.type) for item in OLD_COLUMNS]
    stamp = {b"offleash.spec": pool.spec.former_fingerprint().encode()}
    part = path / f"samples-{time.time_ns():020d}-0123456789ab.parquet"
    pq.write_table(pa.Table.from_arrays(arrays, schema=OLD_COLUMNS.with_metadata(stamp)), part, compression="zstd")


def test_a_pool_of_format_1_opens_reads_and_continues(tmp_path: Path) -> None:
    pool_of_format_1(tmp_path / "old", ALL[:90])
    pool = Pool.open_or_create(tmp_path / "old", SPEC, PROBLEMS)
    assert sum(map(len, pool.missing())) == len(ALL) - 90
    rules = ["boxed" if i % 2 else None for _, i in ALL]
    assert pool.read(["extracted_by"])["extracted_by"].to_pylist() == rules[:90]
    assert pool.read().column_names == pool.read(limit=1).column_names
    left = [(p, int(i)) for p, indices in enumerate(pool.missing()) for i in indices]
    pool.append(rows(left, extracted_by=["boxed" if i % 2 else None for _, i in left]))
    new = Pool.create(tmp_path / "new", SPEC, PROBLEMS)
    new.append(rows(ALL, extracted_by=rules))
    assert pool.is_complete
    assert pool.duplicates() == 0
    names = [item.name for item in fields(Sample)]
    assert pool.read(names).to_pylist() == new.read(names).to_pylist()
    assert pool.hits().unit_hits.tolist() == new.hits().unit_hits.tolist()
    assert pool.tally().status_ps.tolist() == new.tally().status_ps.tolist()


@pytest.mark.parametrize("name", ["pool.json", "problems.parquet", "samples-0.parquet"])
def test_a_pipe_in_a_pool_is_named_instead_of_waited_for(tmp_path: Path, name: str) -> None:
    make_pool(tmp_path, hits=[1, 0], k=4)
    (tmp_path / name).unlink(missing_ok=True)
    os.mkfifo(tmp_path / name)
    with pytest.raises(PoolError, match=name):
        Pool.open(tmp_path).hits()
