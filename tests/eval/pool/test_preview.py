"""`sample --dry-run`: what exists, what is missing and what it takes; nothing is loaded, nothing is written."""

from pathlib import Path
from typing import Any

import pytest

from offleash.eval.errors import PoolError
from offleash.eval.pool.pool import Pool
from offleash.eval.pool.preview import preview
from offleash.eval.pool.sample import PlannedPool, Sampler
from offleash.eval.pool.settings import SampleSettings
from offleash.eval.tasks import load_task
from offleash.train.cli import main

TASK = load_task("countdown", split="probe", n=4)


def plan(folder: Path, **settings: Any) -> tuple[Sampler, PlannedPool]:
    chosen = SampleSettings(**{"k": 8, "sampling": {"max_new_tokens": 20}, **settings})
    sampler = Sampler("lab", chosen)
    return sampler, sampler.plan([(TASK, folder)])[0]


def test_a_pool_that_is_not_there_misses_everything(tmp_path: Path) -> None:
    sampler, planned = plan(tmp_path / "pool")
    found = preview(planned)
    assert (found.samples, found.existing, found.missing) == (32, 0, 32)
    assert found.max_tokens == 32 * 20
    assert found.expected_tokens is None
    assert not found.is_measured
    tokens = [len(sampler.source.tokenizer(problem.prompt)["input_ids"]) for problem in TASK.problems]
    assert found.prompt_tokens == 8 * sum(tokens)
    assert found.longest_prompt == max(tokens)
    assert list(tmp_path.iterdir()) == []


def test_what_is_missing_is_what_a_run_then_draws(tmp_path: Path) -> None:
    sampler, planned = plan(tmp_path / "pool")
    (job,) = sampler.prepare([(TASK, tmp_path / "pool")])
    sampler.run(job, progress=False)
    rows = job.pool.read(["problem_id", "tokens"]).to_pylist()
    part = next((tmp_path / "pool").glob("samples-*.parquet"))
    whole = preview(planned)
    assert (whole.existing, whole.missing, whole.max_tokens, whole.bytes) == (32, 0, 0, 0)
    kept = job.pool.read(None, limit=3)
    part.unlink()
    pool = Pool.open(tmp_path / "pool")
    pool.append(kept.append_column("completion", [["x"] * kept.num_rows]))
    found = preview(planned)
    assert (found.existing, found.missing) == (12, 20)
    mean = sum(kept.column("tokens").to_pylist()) / 12
    assert found.expected_tokens == round(20 * mean)
    assert found.is_measured
    totals = sampler.run(sampler.prepare([(TASK, tmp_path / "pool")])[0], progress=False)
    assert totals is not None
    assert totals.samples == found.missing
    assert len(rows) == found.samples


def test_a_problem_that_reached_its_successes_misses_nothing(tmp_path: Path) -> None:
    sampler, planned = plan(tmp_path / "pool", successes=1)
    assert preview(planned).stops_early
    (job,) = sampler.prepare([(TASK, tmp_path / "pool")])
    sampler.run(job, progress=False)
    assert preview(planned).missing == 0


def test_a_pool_with_other_settings_is_refused_as_by_the_command(tmp_path: Path) -> None:
    sampler, _ = plan(tmp_path / "pool")
    sampler.prepare([(TASK, tmp_path / "pool")])
    with pytest.raises(PoolError, match=r"temperature: 1\.0 -> 0\.5"):
        preview(plan(tmp_path / "pool", sampling={"max_new_tokens": 20, "temperature": 0.5})[1])


def test_the_command_says_it_all_and_leaves_no_trace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("offleash.eval.pool.sample.load_engine", None)  # calling it would be an error
    words = ["--model", "lab", "--task", "countdown", "--task-args", '{"split": "probe", "n": 4}', "--k", "8"]
    words += ["--pool", str(tmp_path / "pool"), "--max-new-tokens", "20", "--dry-run"]
    assert main(["sample", *words, "--tokens-per-second", "2"]) == 0
    said = capsys.readouterr().out
    assert "32: 0 exist, 32 are missing" in said
    assert "640 tokens at most" in said
    assert f"{640 / 2 / 3600:.3g} h at most" in said
    assert list(tmp_path.iterdir()) == []
    assert main(["sample", *words[:-1], "--tokens-per-second", "2"]) == 2
    assert "--dry-run" in capsys.readouterr().err
