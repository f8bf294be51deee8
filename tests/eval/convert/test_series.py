"""Several files add up within a step, each step is a pool of its own, and a series is compared with its base."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from offleash.eval.comparison.compare import compare
from offleash.eval.convert import importer
from offleash.eval.convert.importer import import_samples, import_series
from offleash.eval.convert.readers.record import Reading
from offleash.eval.errors import ConfigError, PoolError
from offleash.eval.pool.pool import Pool
from offleash.eval.tasks import load_task
from offleash.train import cli

Maker = Callable[..., Any]


def rows(step: int, scores: dict[str, list[int]]) -> list[dict[str, Any]]:
    """verl's generations of some problems, in a different order at every step."""
    order = sorted(scores, reverse=step % 20 == 0)
    return [
        {"input": name, "output": f"{name}: {score}", "gts": "1", "score": float(score), "step": step}
        for name in order
        for score in scores[name]
    ]


BASE = {"a": [1, 0, 1, 0], "b": [1, 0, 0, 0], "c": [0, 0, 0, 0]}
LATER = {"a": [1, 1, 1, 1], "b": [0, 0, 0, 0], "c": [0, 0, 0, 1]}


def test_each_step_is_a_pool_and_the_series_is_compared_with_its_base(write_lines: Maker, tmp_path: Path) -> None:
    paths = [write_lines(f"val/{step}.jsonl", rows(step, scores)) for step, scores in ((100, LATER), (10, BASE))]
    base = import_samples(write_lines("val/0.jsonl", rows(0, BASE)), tmp_path / "base")
    made = import_series(paths, tmp_path / "steps")
    assert [(one.step, one.samples, one.correct, one.pool.name) for one in made] == [
        (10, 12, 3, "step-000010"),
        (100, 12, 5, "step-000100"),
    ]
    assert (base.step, base.correct) == (0, 3)
    result = compare(tmp_path / "base", tmp_path / "steps")
    assert [policy.side.step for policy in result.policies] == [10, 100]
    assert [(policy.lost.units, policy.gained.units) for policy in result.policies] == [(0, 0), (1, 1)]


def test_files_of_one_step_add_up_whatever_their_order(write_lines: Maker, tmp_path: Path) -> None:
    paths = [write_lines("rank0.jsonl", rows(10, BASE)), write_lines("rank1.jsonl", rows(10, LATER))]
    made = import_samples(paths, tmp_path / "one")
    assert (made.problems, made.samples, made.correct, made.most) == (3, 24, 8, 8)
    import_samples(paths[::-1], tmp_path / "other")
    hits = [Pool.open(tmp_path / name).hits() for name in ("one", "other")]
    assert hits[0].correct_p.tolist() == hits[1].correct_p.tolist() == [1, 1, 6]  # in the order of their ids
    with pytest.raises(ConfigError, match=r"rank0\.jsonl is given twice"):
        import_samples([paths[0], paths[0]], tmp_path / "twice")


def test_a_step_is_chosen_or_asked_for(write_lines: Maker, tmp_path: Path) -> None:
    path = write_lines("all.jsonl", [*rows(10, BASE), *rows(20, LATER), *rows(10, LATER)])
    with pytest.raises(ConfigError, match=r"2 training steps \(10, 20\): choose one with --step, .*--steps all"):
        import_samples(path, tmp_path / "pool")
    with pytest.raises(ConfigError, match="has no samples of step 15; it has 10, 20"):
        import_samples(path, tmp_path / "pool", step=15)
    made = import_samples(path, tmp_path / "pool", step=10)
    assert (made.samples, made.correct, made.step) == (24, 8, 10)
    kept = Pool.open(tmp_path / "pool").read(["completion"]).column("completion").to_pylist()
    assert sorted(kept) == sorted(row["output"] for row in [*rows(10, BASE), *rows(10, LATER)])
    series = import_series(path, tmp_path / "steps")
    assert [(one.step, one.samples, one.correct) for one in series] == [(10, 24, 8), (20, 12, 5)]


def test_own_rows_may_name_a_training_step(write_lines: Maker, tmp_path: Path) -> None:
    own = [{"problem_id": "p", "answer": "1", "correct": True, "step": step} for step in (1, 2, 2)]
    made = import_series(write_lines("own.jsonl", own), tmp_path / "steps")
    assert [(one.step, one.samples) for one in made] == [(1, 1), (2, 2)]
    without = write_lines("without.jsonl", [{"problem_id": "p", "answer": "1", "correct": True}])
    with pytest.raises(ConfigError, match="line 1 names no training step"):
        import_series(without, tmp_path / "other")


def test_a_series_is_written_whole_or_not_at_all(
    write_lines: Maker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [write_lines("10.jsonl", rows(10, BASE)), write_lines("20.jsonl", [*rows(20, BASE), {"input": "x"}])]
    with pytest.raises(ConfigError, match=r"20\.jsonl: 1 of 13 lines are invalid: line 13 has no output, score"):
        import_series(paths, tmp_path / "steps")
    paths[1] = write_lines("20.jsonl", rows(20, BASE))
    written = importer._write

    def fails_at_the_second(folder: Path, *args: Any) -> int:
        if folder.name == "step-000020":
            raise OSError(28, os.strerror(28))
        return written(folder, *args)

    monkeypatch.setattr(importer, "_write", fails_at_the_second)
    with pytest.raises(PoolError, match=r"cannot make the pool .*steps: No space left"):
        import_series(paths, tmp_path / "steps")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["10.jsonl", "20.jsonl"]


def test_the_errors_of_several_files_name_the_file(write_lines: Maker, tmp_path: Path) -> None:
    own = [{"problem_id": "p", "index": 0, "answer": "1", "correct": True}]
    paths = [write_lines("one.jsonl", own), write_lines("two.jsonl", own)]
    with pytest.raises(
        ConfigError, match=r"two\.jsonl: .*line 1 repeats problem 'p', index 0 of line 1 of .*one\.jsonl"
    ):
        import_samples(paths, tmp_path / "pool")
    other = write_lines("three.jsonl", [{**own[0], "index": 1, "gold": "2"}])
    with pytest.raises(ConfigError, match=r"three\.jsonl: .*line 1 gives problem 'p' a different gold"):
        import_samples([paths[0], other], tmp_path / "pool")


def test_answers_of_a_format_that_has_its_own_are_not_looked_for(write_lines: Maker, tmp_path: Path) -> None:
    path = write_lines("own.jsonl", [{"problem_id": "p", "answer": "1", "correct": True}])
    with pytest.raises(ConfigError, match="--answer is for files without answers of their own"):
        import_samples(path, tmp_path / "pool", reading=Reading(answer="pred"))


def test_a_task_verifies_the_generations_of_a_trainer_by_their_question(write_lines: Maker, tmp_path: Path) -> None:
    task = load_task("gsm8k", path=write_lines("gsm8k.jsonl", [{"question": "1 + 1?", "answer": "#### 2"}]))
    chat = [{"role": "system", "content": "s"}, {"role": "user", "content": "1 + 1?"}]
    told = [{"input": prompt, "output": "It is 2", "score": -1.0, "step": 3} for prompt in (chat, "1 + 1?")]
    made = import_samples(write_lines("3.jsonl", told[:1]), tmp_path / "pool", task=task)
    assert (made.correct, made.judged_by) == (1, "")
    assert import_samples(write_lines("3.jsonl", told[1:]), tmp_path / "text", task=task).correct == 1


def test_the_command_says_what_it_found(write_lines: Maker, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [str(write_lines(f"val/{step}.jsonl", rows(step, BASE))) for step in (10, 20)]
    out = str(tmp_path / "steps")
    assert cli.main(["import", *paths, "--pool", out, "--steps", "all", "--correct", "score", "--threshold", "1"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "detected verl samples in 2 files; verdicts as given by score"
    assert said[1] == f"step 10: 3 problems, 12 samples (4 each), 25.0% correct -> {out}/step-000010"
    one = str(tmp_path / "one")
    assert cli.main(["import", paths[0], "--format", "verl", "--pool", one, "--step", "10"]) == 0
    assert capsys.readouterr().out.startswith(f"read as verl samples in {paths[0]}; verdicts as given by score\n")
    both = ["import", *paths, "--pool", str(tmp_path / "x"), "--steps", "all", "--step", "1"]
    assert cli.main(both) == 2
    assert "--step takes one step" in capsys.readouterr().err
    assert cli.main(["import", *paths, "--pool", str(tmp_path / "x")]) == 2
    assert "2 training steps (10, 20)" in capsys.readouterr().err
    assert not (tmp_path / "x").exists()
