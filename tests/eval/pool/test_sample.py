"""`sample_pool`: from Python, what `offleash sample` does."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from offleash.eval.errors import ConfigError, PoolError
from offleash.eval.pool.fill import Fill
from offleash.eval.pool.pool import Pool
from offleash.eval.pool.sample import sample_pool
from offleash.eval.problem import Verdict
from offleash.eval.sampling import Sampling
from offleash.eval.tasks import load_task
from offleash.eval.tasks.countdown import Countdown
from offleash.train.cli import main

SHORT = Sampling(max_new_tokens=20)
NAMES = ["problem_id", "index", "answer", "correct", "status", "extracted_by", "tokens", "logprob", "completion"]


def sample(path: Path, **changes: Any) -> Pool:
    settings = {"k": 8, "sampling": SHORT, "task_args": {"split": "probe", "n": 3}, "progress": False, **changes}
    return sample_pool("lab", settings.pop("task", "countdown"), path, **settings)


def test_the_function_and_the_command_make_the_very_same_pool(tmp_path: Path) -> None:
    words = ["--task", "countdown", "--task-args", '{"split": "probe", "n": 3}', "--k", "8", "--max-new-tokens", "20"]
    assert main(["sample", "--model", "lab", *words, "--pool", str(tmp_path / "command")]) == 0
    command, function = Pool.open(tmp_path / "command"), sample(tmp_path / "function")
    assert function.is_complete
    assert function.spec == command.spec
    assert function.read(NAMES).to_pylist() == command.read(NAMES).to_pylist()


def test_an_incomplete_pool_is_resumed_and_a_complete_one_left_alone(tmp_path: Path) -> None:
    task = load_task("countdown", split="probe", n=3)
    pool = sample(tmp_path / "a", task=task, task_args=None, save_every=0.0)
    drawn = [name for name in NAMES if name != "logprob"]  # whose last digits depend on the batch
    expected = pool.read(drawn).to_pylist()
    pool.parts.paths()[0].unlink()
    assert not pool.is_complete
    assert sample(tmp_path / "a").read(drawn).to_pylist() == expected
    parts = pool.parts.paths()
    assert sample(tmp_path / "a").parts.paths() == parts


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"seed": 1}, "seed: 0 -> 1"),
        ({"sampling": Sampling(max_new_tokens=20, top_p=0.9)}, "top_p: 1.0 -> 0.9"),
        ({"successes": 2}, "plan: "),
        ({"ids": ["countdown/probe/0"], "task_args": {"split": "probe", "n": 3}}, "countdown/probe/0"),
    ],
)
def test_other_settings_are_refused_by_the_fields_name(tmp_path: Path, changes: dict[str, Any], field: str) -> None:
    sample(tmp_path / "pool")
    with pytest.raises((PoolError, ConfigError), match=field.replace(".", r"\.")):
        sample(tmp_path / "pool", **changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"k": 0},
        {"limit": 0},
        {"dtype": "int8"},
        {"save_every": -1.0},
        {"max_verifier_failures": 2.0},
        {"ray_workers": 2},
        {"served_model": "x"},
        {"sampling": {"temperature": 0.0}},
        {"sampling": {"temperatur": 1.0}},
        {"sampling": {"max_new_tokens": 2.5, "temperature": 1.0}},
        {"k": 4.5},
        {"seed": "a"},
        {"limit": 2.5},
        {"successes": 0},
    ],
)
def test_a_bad_value_is_refused_by_name_and_makes_no_pool(tmp_path: Path, changes: dict[str, Any]) -> None:
    (name,) = changes
    with pytest.raises(ConfigError, match="temperatur|max_new_tokens" if name == "sampling" else name):
        sample(tmp_path / "pool", **changes)
    assert not (tmp_path / "pool").exists()


def test_arguments_for_a_task_that_is_built_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="task_args"):
        sample(tmp_path / "pool", task=load_task("countdown", split="probe", n=3))


def test_without_a_length_the_models_context_decides(tmp_path: Path) -> None:
    pool = sample(tmp_path / "pool", sampling=None, k=1, limit=1, successes=1)
    assert pool.spec.max_new_tokens == 128 - 15  # the context less the longest prompt of the task, sampled or not
    assert pool.spec.plan.successes == 1
    assert len(pool.problem_ids) == 1


def test_a_second_sampler_of_a_pool_is_refused_at_once_and_the_first_is_undisturbed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first_run = Fill.run

    def run(self: Fill, **settings: Any) -> Any:
        with pytest.raises(ConfigError, match="another process is sampling"):
            sample(tmp_path / "pool")
        return first_run(self, **settings)

    monkeypatch.setattr(Fill, "run", run)
    pool = sample(tmp_path / "pool")
    assert pool.is_complete
    assert pool.duplicates() == 0
    (tmp_path / "pool" / ".lock").unlink()
    sample(tmp_path / "pool")
    assert not (tmp_path / "pool" / ".lock").exists()  # a whole pool may be where nothing can be written


# Growing


DRAWN = [name for name in NAMES if name != "logprob"]  # whose last digits depend on the batch


def test_a_pool_grown_on_the_real_engine_has_the_samples_of_one_drawn_at_once(tmp_path: Path) -> None:
    sample(tmp_path / "grown", k=3, limit=2, engine_args={"batch_size": 4})
    third = load_task("countdown", split="probe", n=3).problems[2].id
    sample(tmp_path / "grown", k=5, ids=[third], engine_args={"batch_size": 7})
    less = sample(tmp_path / "grown", k=2)
    assert less.hits().n_p.tolist() == [2, 2, 2]
    grown = sample(tmp_path / "grown", k=9)
    at_once = sample(tmp_path / "at once", k=9)
    assert grown.read(DRAWN).to_pylist() == at_once.read(DRAWN).to_pylist()
    assert less.read(DRAWN).to_pylist() == at_once.read(DRAWN, limit=2).to_pylist()
    parts = grown.parts.paths()
    assert sample(tmp_path / "grown", k=4, limit=1).is_complete
    assert grown.parts.paths() == parts


def test_shards_are_disjoint_cover_all_problems_and_merge_into_the_pool_of_one_machine(tmp_path: Path) -> None:
    shards = [sample(tmp_path / f"part-{i}", k=4, shard=f"{i}/2", sampling=None) for i in (1, 2)]
    assert [len(pool.problem_ids) for pool in shards] == [2, 1]
    assert main(["merge", str(tmp_path / "all"), *(str(pool.path) for pool in shards)]) == 0
    whole = sample(tmp_path / "all", k=4, sampling=None)
    assert whole.read(DRAWN).to_pylist() == sample(tmp_path / "one", k=4, sampling=None).read(DRAWN).to_pylist()
    assert len(whole.parts.paths()) == 2


@pytest.mark.parametrize("shard", ["0/2", "3/2", "1", "a/b", "1/0", ""])
def test_a_shard_that_does_not_exist_is_refused(tmp_path: Path, shard: str) -> None:
    with pytest.raises(ConfigError, match="shard"):
        sample(tmp_path / "pool", shard=shard or "/")
    with pytest.raises(ConfigError, match="shard 4/4 is empty"):
        sample(tmp_path / "pool", shard="4/4")
    assert not (tmp_path / "pool").exists()


class Stricter(Countdown):
    """Countdown, whose verifier was edited: nothing with a plus sign is correct any more."""

    def __init__(self) -> None:
        super().__init__(split="probe", n=3)
        self.version = "stricter"

    def verify(self, problems: Any, completions: Any, truncated: Any = None) -> list[Verdict]:
        verdicts = super().verify(problems, completions, truncated)
        return [replace(v, correct=v.correct and "+" not in c) for v, c in zip(verdicts, completions, strict=True)]


def test_a_changed_verifier_judges_again_what_is_stored_and_draws_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = sample(tmp_path / "pool", k=16)
    correct = int(first.hits().correct_p.sum())
    drawn, edited = first.read(["completion", "tokens", "logprob"]).to_pylist(), Stricter()
    again = sample(tmp_path / "pool", k=16, task=edited, task_args=None)
    said = capsys.readouterr().out
    assert said.count("the verifier changed; judged 48 stored completions again") == 1
    assert again.read(["completion", "tokens", "logprob"]).to_pylist() == drawn
    fresh = sample(tmp_path / "fresh", k=16, task=edited, task_args=None)
    assert again.hits().checksum() == fresh.hits().checksum()
    assert 0 < again.hits().correct_p.sum() < correct


# What does not block


def test_a_command_that_failed_before_its_first_sample_does_not_block_the_next(tmp_path: Path) -> None:
    for changes in ({"engine_args": {"batch_size": 0}}, {"engine_args": {"device": "nonsense"}, "k": 999, "seed": 5}):
        with pytest.raises((ConfigError, RuntimeError)):
            sample(tmp_path / "pool", **changes)
    pool = sample(tmp_path / "pool", seed=1)
    assert pool.is_complete
    assert Pool.open(tmp_path / "pool").is_complete


def test_a_folder_with_other_files_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "thesis.tex").touch()
    monkeypatch.chdir(tmp_path)
    words = ["--task", "countdown", "--task-args", '{"split": "probe", "n": 3}', "--k", "8", "--max-new-tokens", "20"]
    assert main(["sample", "--model", "lab", *words, "--pool", "."]) == 2
    said = capsys.readouterr().err
    assert "thesis.tex" in said
    assert len(said.strip().splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
