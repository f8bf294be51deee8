"""`sample_pool`: from Python, what `offleash sample` does."""

from pathlib import Path
from typing import Any

import pytest

from offleash.eval.errors import ConfigError, PoolError
from offleash.eval.pool.fill import Fill
from offleash.eval.pool.pool import Pool
from offleash.eval.pool.sample import sample_pool
from offleash.eval.sampling import Sampling
from offleash.eval.tasks import load_task
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
        ({"k": 9}, "k: 8 -> 9"),
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
    assert pool.spec.max_new_tokens == 128 - 12  # the context less the prompt
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
