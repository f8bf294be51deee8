"""Judging again changes every verdict or none, never a sample, and says what changed."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from offleash.eval.errors import ConfigError, PoolError, VerifyError
from offleash.eval.lock import held
from offleash.eval.pool.ledger import Ledger
from offleash.eval.pool.manifest import Manifest
from offleash.eval.pool.pool import Pool
from offleash.eval.pool.rejudge import adopt, rejudge_pool
from offleash.eval.pool.testing import make_problems, make_spec
from offleash.eval.problem import Problem, Verdict
from offleash.eval.sampling import Plan
from offleash.eval.scoring.score_folder import ScoreFolder, ScoreSpec
from offleash.eval.verify.health import Failures
from tests.eval.pool.former import write_former

SAMPLES = ["problem_id", "index", "completion", "tokens", "logprob", "truncated"]
VERDICTS = ["problem_id", "index", "answer", "correct", "status", "extracted_by", "spelling"]


class Parity:
    """Correct if the number at the end of a completion is a multiple of `every`; truncated ones have no answer."""

    name = "parity"

    def __init__(self, every: int = 2, version: str | None = None, problems: int = 3) -> None:
        self.every, self.version = every, version or f"every {every}"
        self.problems: Sequence[Problem] = make_problems(problems)

    def verify(self, problems: Any, completions: Any, truncated: Any = None) -> list[Verdict]:
        return [
            Verdict(None, False, "truncated") if cut else self._verdict(text)
            for text, cut in zip(completions, truncated, strict=True)
        ]

    def _verdict(self, text: str) -> Verdict:
        number = int(text.split()[-1])
        return Verdict(str(number % self.every), number % self.every == 0, "ok", "last", spelling=text[-2:])

    def correct_answers(self, problem: Problem) -> tuple[str, ...] | None:
        return ("0",)


def drawn(path: Path, task: Parity, k: int = 12, parts: int = 4, successes: int | None = None, last: int = 99) -> Pool:
    """k samples of each problem, "sample of p1: 7", every fifth truncated, judged by the task; in several parts."""
    plan = Plan(successes=successes)
    spec = make_spec(task.problems, k, task=task.name, task_version=task.version, plan=plan)
    answers = [task.correct_answers(problem) for problem in task.problems]
    pool = Pool.open_or_create(path, spec, task.problems, answers)
    every = [
        (name, int(i)) for name, left in zip(pool.problem_ids, pool.missing(), strict=True) for i in left if i <= last
    ]
    for part in range(parts):
        some = every[part::parts]
        texts, cut = [f"sample of {name} {i}" for name, i in some], [i % 5 == 4 for _, i in some]
        verdicts = task.verify(task.problems, texts, cut)
        columns = {field: [getattr(v, field) for v in verdicts] for field in VERDICTS[2:]}
        pool.append(
            {
                "problem_id": [name for name, _ in some],
                "index": [i for _, i in some],
                "completion": texts,
                "tokens": [8 if truncated or i == 3 else 5 for (_, i), truncated in zip(some, cut, strict=True)],
                "truncated": cut,
                "logprob": [-float(i) for _, i in some],
                **columns,
            }
        )
    return pool


def rows(pool: Pool, columns: list[str]) -> list[dict[str, Any]]:
    return Pool.open(pool.path).read(columns).to_pylist()


def test_every_verdict_is_the_new_one_and_every_sample_the_former(tmp_path: Path) -> None:
    pool, fresh = drawn(tmp_path / "old", Parity(2)), drawn(tmp_path / "new", Parity(3))
    before = rows(pool, SAMPLES)
    done = rejudge_pool(pool.path, Parity(3))
    assert rows(pool, SAMPLES) == before
    assert rows(pool, VERDICTS) == rows(fresh, VERDICTS)
    judged = Pool.open(pool.path)
    assert judged.spec.fingerprint() == fresh.spec.fingerprint()
    assert judged.hits().checksum() == fresh.hits().checksum()
    # Of 0 to 11 without 4 and 9: 0, 2, 6, 8, 10 are even; 0, 3, 6 multiples of three.
    assert (done.changes.samples, done.changes.to_wrong, done.changes.to_correct) == (36, 9, 3)
    assert (done.before, done.after) == (pytest.approx(5 / 12), pytest.approx(3 / 12))
    assert "9 correct -> wrong, 3 wrong -> correct), pass@1 0.4167 -> 0.2500" in str(done)
    assert drawn(pool.path, Parity(3), k=14).is_complete  # it grows on, by the new verifier


def test_the_same_verifier_changes_nothing_whether_or_not_a_part_says_what_was_truncated(tmp_path: Path) -> None:
    pool = drawn(tmp_path, Parity(2))
    before = rows(pool, VERDICTS)
    done = rejudge_pool(tmp_path, Parity(2))
    assert (done.changes.verdicts, done.before) == (0, done.after)
    assert rows(pool, VERDICTS) == before  # index 3 has as many tokens as the limit and was not cut


def test_only_one_generation_of_files_is_left(tmp_path: Path) -> None:
    pool = drawn(tmp_path, Parity(2))
    for every, generation in ((3, 2), (2, 3), (2, 4)):
        rejudge_pool(tmp_path, Parity(every))
        names = sorted(path.name for path in tmp_path.iterdir() if not path.name.startswith("."))
        assert names[:2] == ["pool.json", f"problems.{generation}.parquet"]
        assert [name.split("-")[0] for name in names[2:]] == [f"samples.{generation}"] * 4
    row = {"problem_id": ["p0"], "index": [0], "answer": ["x"], "correct": [False], "status": ["ok"]}
    for use in (lambda: pool.append(row), pool.hits, pool.missing, pool.read):
        with pytest.raises(PoolError, match="replaced or judged again"):
            use()


def test_listed_answers_are_those_of_the_new_verifier(tmp_path: Path) -> None:
    class Listed(Parity):
        def correct_answers(self, problem: Problem) -> tuple[str, ...] | None:
            return ("0", "never")

    drawn(tmp_path, Parity(2))
    assert rejudge_pool(tmp_path, Listed(2, version="2")).pool.answers == [("0", "never")] * 3


def test_a_plan_that_stops_early_holds_the_stopped_experiment_of_the_new_verdicts(tmp_path: Path) -> None:
    pool = drawn(tmp_path, Parity(3), successes=2, last=3)
    done = rejudge_pool(tmp_path, Parity(1))  # the second correct one is sample 1 then, not 3
    assert rows(pool, ["index"]) == [{"index": i} for _ in range(3) for i in range(2)]
    assert done.removed == 3 * 2
    assert Ledger(done.pool).is_complete
    back = rejudge_pool(tmp_path, Parity(3))
    assert not Ledger(back.pool).is_complete
    assert [(b.problem, b.start) for b in Ledger(back.pool).blocks(12, 64)] == [(0, 2), (1, 2), (2, 2)]


@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_pool_of_an_earlier_format_is_judged_again(tmp_path: Path, version: int) -> None:
    task = Parity(2)
    spec = make_spec(task.problems, 12, task=task.name, task_version=task.version)
    Pool.create(tmp_path, spec, task.problems, [("0",)] * 3)
    write_former(tmp_path, version)
    drawn(tmp_path, task)
    assert rejudge_pool(tmp_path, Parity(3)).changes.to_wrong == 9
    assert Pool.open(tmp_path).spec.task_version == "every 3"


def test_scores_outlive_growing_and_judging_again(tmp_path: Path) -> None:
    pool = drawn(tmp_path, Parity(2))
    spec = ScoreSpec(
        pool=pool.manifest.created_as, model="m", revision="", weights="w", dtype="float32", template="t",
        temperature=1.0, end_token="",
    )  # fmt: skip
    row = {"problem_id": ["p1"], "index": [3], "tokens": [4], "drawn_tokens": [4], "logprob": [-1.5], "entropy": [0.5]}
    ScoreFolder.open_or_create(pool, "m", spec).append(row)
    rejudge_pool(tmp_path, Parity(3))
    drawn(tmp_path, Parity(3, problems=5), k=20)
    rejudge_pool(tmp_path, Parity(4, problems=5))
    found = ScoreFolder.open(Pool.open(tmp_path), "m").read()
    assert (found.problem_r.tolist(), found.index_r.tolist(), found.logprob_r.tolist()) == ([1], [3], [-1.5])
    assert len(ScoreFolder.open(Pool.open(tmp_path).only(["p4"]), "m").read().index_r) == 0


# What is refused


def test_what_cannot_be_judged_again_is_refused_by_name_and_unchanged(tmp_path: Path) -> None:
    pool = drawn(tmp_path, Parity(2))
    before = sorted(path.name for path in tmp_path.glob("*.*"))
    changed = Parity(3)
    changed.problems = [Problem("p0", "0 + 0 =", "other gold"), *changed.problems[1:]]
    other = Parity(3)
    other.name = "parity-2"
    for task, named in ((Parity(3, problems=2), "'p2'"), (changed, "'p0' has another gold"), (other, "'parity-2'")):
        with pytest.raises(PoolError, match=named):
            rejudge_pool(tmp_path, task)
    with pytest.raises(ConfigError, match="task_args"):
        rejudge_pool(tmp_path, Parity(3), task_args={"n": 1})
    with held(tmp_path, "taken"), pytest.raises(ConfigError, match="another process"):
        rejudge_pool(tmp_path, Parity(3))
    assert sorted(path.name for path in tmp_path.glob("*.*")) == [".lock", *before]
    assert Pool.open(tmp_path).spec == pool.spec


def test_a_pool_without_completions_is_refused(tmp_path: Path) -> None:
    pool = drawn(tmp_path, Parity(2))
    row = {"problem_id": ["p0"], "index": [12], "answer": ["0"], "correct": [True], "status": ["ok"]}
    Pool.open_or_create(tmp_path, make_spec(pool.problems, 13, task="parity", task_version="every 2"), pool.problems)
    Pool.open(tmp_path).append(row)
    with pytest.raises(PoolError, match="1 samples have no completion"):
        rejudge_pool(tmp_path, Parity(3))


def test_a_folder_that_is_no_pool_is_left_alone(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(PoolError, match=r"not a pool|does not exist"):
            rejudge_pool(path, Parity(3))
    assert not list(tmp_path.iterdir())


def test_a_verifier_that_fails_leaves_the_former_verdicts(tmp_path: Path) -> None:
    class Broken(Parity):
        def _verdict(self, text: str) -> Verdict:
            raise KeyError(text)

    pool = drawn(tmp_path, Parity(2))
    before = rows(pool, VERDICTS)
    with pytest.raises(VerifyError, match="verifier"):
        rejudge_pool(tmp_path, Broken(3))
    assert rows(pool, VERDICTS) == before


# kill -9

LIFE = textwrap.dedent(
    """
    import sys, time
    sys.path[:0] = sys.argv[3:]
    from tests.eval.pool.test_rejudge import Parity
    from offleash.eval.pool.rejudge import rejudge_pool
    class Slow(Parity):
        def verify(self, problems, completions, truncated=None):
            time.sleep(0.03)
            return super().verify(problems, completions, truncated)
    print("ready", flush=True)
    rejudge_pool(sys.argv[1], Slow(int(sys.argv[2]), version=f"every {sys.argv[2]}"))
    """
)


def life(path: Path, every: int, seconds: float) -> int:
    command = [sys.executable, "-c", LIFE, str(path), str(every), str(Path(__file__).parents[3])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(seconds)
        os.kill(process.pid, signal.SIGKILL)
    return process.returncode


@pytest.mark.long
def test_killed_at_any_moment_all_verdicts_are_of_one_verifier(tmp_path: Path) -> None:
    pool = drawn(tmp_path / "pool", Parity(2), parts=12)
    fresh = {every: rows(drawn(tmp_path / str(every), Parity(every)), VERDICTS) for every in (2, 3, 4)}
    every = 2
    for target, seconds in ((3, 0.1), (4, 0.2), (3, 0.15), (3, 0.25), (4, 0.3)):
        life(pool.path, target, seconds)
        every = int(Pool.open(pool.path).spec.task_version.split()[1])
        assert rows(pool, VERDICTS) == fresh[every]
    final = 3 if every != 3 else 2
    rejudge_pool(pool.path, Parity(final))
    assert rows(pool, VERDICTS) == fresh[final]
    assert Pool.open(pool.path).duplicates() == 0


def test_what_was_judged_before_a_kill_is_not_judged_twice_unless_the_verifier_changed_since(tmp_path: Path) -> None:
    class Counting(Parity):
        calls = 0

        def verify(self, problems: Any, completions: Any, truncated: Any = None) -> list[Verdict]:
            self.calls += 1
            if self.calls > 2:
                raise ConfigError("died")
            return super().verify(problems, completions, truncated)

    pool = drawn(tmp_path, Parity(2), parts=4)
    with pytest.raises(ConfigError, match="died"):
        rejudge_pool(tmp_path, Counting(3))
    resumed, other = Counting(3), Parity(5)
    rejudge_pool(tmp_path, resumed)
    assert resumed.calls == 2
    with pytest.raises(ConfigError, match="died"):
        rejudge_pool(tmp_path, Counting(4))
    rejudge_pool(tmp_path, other)
    assert {row["answer"] for row in rows(pool, VERDICTS)} == {"0", "1", "2", "3", None}
    assert Manifest.read(tmp_path).generation == 3


# From one pool into another


def test_a_pool_takes_what_others_have_judged_by_its_own_verifier(tmp_path: Path) -> None:
    old = drawn(tmp_path / "old", Parity(2), k=6)
    drawn(tmp_path / "unlike", Parity(2), successes=1)
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "pool.json").write_text("{")
    task = Parity(3, problems=4)
    spec = make_spec(task.problems, 8, task=task.name, task_version=task.version)
    pool = Pool.open_or_create(tmp_path / "new", spec, task.problems, [("0",)] * 4)
    ((source, changes),) = adopt(pool, task, tmp_path, Failures())
    assert (source.path, changes.samples) == (old.path, 18)
    assert [len(left) for left in pool.missing()] == [2, 2, 2, 8]
    fresh = rows(drawn(tmp_path / "fresh", Parity(3), k=6), [*VERDICTS, "completion"])
    assert rows(pool, [*VERDICTS, "completion"]) == fresh
    assert Pool.open(old.path).spec.task_version == "every 2"
    (again,) = adopt(pool, task, tmp_path, Failures())[:1] or [None]
    assert again is None  # there is nothing more to take
