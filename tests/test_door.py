"""The public names: these and no more, each with an example in its docstring that runs in an empty folder."""

import doctest
import subprocess
import sys
from contextlib import suppress
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import pytest

DOOR = {
    "offleash.callbacks": {"RolloutCallback", "SupportCallback", "SupportGuard"},
    "offleash.train": {"Explorer", "Rollouts", "Tokens", "explore", "load_recipe", "train"},
    "offleash.eval": {
        *("Estimate", "OffleashError", "Pool", "Problem", "Sampling", "Task", "Verdict"),
        *("answer_entropy", "compare", "dynamics", "leash_line", "load_task", "noise_test", "pass_at_k"),
        *("for_trl", "merge_pools", "rejudge_pool", "sample_pool", "score_pool", "task_from_dataset", "write_report"),
    },
}
NAMES = [(module, name) for module, names in DOOR.items() for name in sorted(names)]


@pytest.mark.parametrize("module", DOOR)
def test_a_door_lists_the_public_names_and_no_more(module):
    assert set(import_module(module).__all__) == DOOR[module]
    with pytest.raises(AttributeError, match="no_such_name"):
        import_module(module).no_such_name  # noqa: B018


def test_the_root_has_every_public_name_but_the_function_train():
    import offleash

    assert set(offleash.__all__) == {name for _, name in NAMES} - {"train"}
    assert all(
        getattr(offleash, name) is getattr(import_module(module), name) for module, name in NAMES if name != "train"
    )
    assert offleash.train.__name__ == "offleash.train"
    assert offleash.__version__ == version("offleash")
    with pytest.raises(AttributeError, match="no_such_name"):
        offleash.no_such_name  # noqa: B018


def test_the_root_is_typed_and_runs_as_a_module():
    import offleash

    assert (Path(offleash.__file__).parent / "py.typed").exists()
    done = subprocess.run([sys.executable, "-m", "offleash", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"offleash {offleash.__version__}"


@pytest.fixture(scope="module", autouse=True)
def _deepspeed_has_had_its_say():
    """Where it is installed, its first import prints a line, which no example shows."""
    with suppress(ImportError):
        import_module("deepspeed")


@pytest.mark.parametrize(("module", "name"), NAMES)
def test_the_example_of_a_public_name_runs(module, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    public = getattr(import_module(module), name)
    (found,) = doctest.DocTestFinder(recurse=False).find(public, name, globs={})
    assert found.examples, f"{module}.{name} has no example"
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    said: list[str] = []
    runner.run(found, out=said.append)
    assert not runner.failures, "".join(said)
