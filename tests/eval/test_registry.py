"""Names of one's own things are found where one works."""

import sys

import pytest

from offleash.eval.engines import find_engine
from offleash.eval.errors import ConfigError
from offleash.eval.registry import announced_imports, find
from offleash.eval.tasks import load_task
from offleash.train.explorers import load_explorers


def test_a_module_in_the_working_directory_is_found_and_the_path_stays_as_it_was(tmp_path, monkeypatch):
    (tmp_path / "my_own_module.py").write_text("import sys\n\nclass Make:\n    seven = 7\n    def go(self): ...\n")
    monkeypatch.chdir(tmp_path)
    before = [*sys.path]
    assert find("task", "my_own_module:Make", {}, ["go"])().seven == 7
    assert sys.path == before
    with pytest.raises(ConfigError, match="not_there"):
        find("task", "not_there:Make", {}, ["go"])
    assert sys.path == before


@pytest.mark.parametrize(
    "name", ["os:system", "builtins:exec", "subprocess:run", "subprocess:Popen", "builtins:dict", "os:environ"]
)
def test_what_has_not_the_members_of_its_kind_is_never_called(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for kind, load in (("task", load_task), ("explorer", lambda name, **given: load_explorers({name: given}))):
        with pytest.raises(ConfigError, match=f"{kind} '{name}'"):
            load(name, command="touch called")
    with pytest.raises(ConfigError, match=f"engine '{name}'"):
        find_engine(name)
    assert list(tmp_path.iterdir()) == []


def test_imports_of_what_is_not_ours_are_announced_before_they_happen(tmp_path, monkeypatch):
    (tmp_path / "loud_module.py").write_text("import pathlib\npathlib.Path('imported').touch()\nclass Loud: ...\n")
    monkeypatch.chdir(tmp_path)
    told = []
    with announced_imports(lambda kind, name: told.append((kind, name, (tmp_path / "imported").exists()))):
        find_engine("transformers")
        with pytest.raises(ConfigError, match="lacks verify"):
            load_task("loud_module:Loud")
    assert told == [("task", "loud_module:Loud", False)]
    assert (tmp_path / "imported").exists()


@pytest.mark.parametrize("name", [":", ":Class", ".module:Class"])
def test_a_name_without_a_module_is_told(name):
    with pytest.raises(ConfigError, match="your own: my_module:MyClass"):
        find("task", name, {}, ())
