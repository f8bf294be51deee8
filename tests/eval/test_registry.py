"""Names of one's own things are found where one works."""

import sys
from types import SimpleNamespace

import pytest

from offleash.eval.engines import find_engine
from offleash.eval.engines.base import Request
from offleash.eval.engines.cluster.shared_engine import Model
from offleash.eval.engines.model import resolve_model
from offleash.eval.errors import ConfigError, EngineError
from offleash.eval.pool.ray_worker import Worker
from offleash.eval.registry import announced_imports, find, library_path
from offleash.eval.sampling import Sampling
from offleash.eval.tasks import load_task
from offleash.eval.verify.sandbox.workers import readable_paths
from offleash.train.explorers import load_explorers


def test_a_module_in_the_working_directory_is_found_and_what_it_imports_later_too(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "my_own_module.py").write_text(
        "class Make:\n    def go(self):\n        import my_own_later as m; return m.x\n"
    )
    (tmp_path / "my_own_later.py").write_text("x = 7\n")
    monkeypatch.chdir(tmp_path)
    made = find("task", "my_own_module:Make", {}, ["go"])()
    monkeypatch.chdir(tmp_path.parent)
    assert made.go() == 7
    with pytest.raises(ConfigError, match=f"not_there.*{tmp_path.parent}"):
        find("task", "not_there:Make", {}, ["go"])


def test_a_sandbox_does_not_show_the_folder_of_ones_own_modules(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_own_secret.py").write_text("class Make:\n    def go(self): ...\n")
    before = library_path()
    find("task", "my_own_secret:Make", {}, ["go"])
    assert str(tmp_path) in sys.path
    assert library_path() == before
    assert str(tmp_path) not in readable_paths()


def test_what_is_installed_wins_over_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "wave.py").write_text("class Make:\n    def go(self): ...\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"python3.*wave.py.*has no 'Make'"):
        find("task", "wave:Make", {}, ["go"])


def test_an_engine_of_ones_own_is_found_by_a_cluster_worker_in_the_folder_of_the_driver(tmp_path, monkeypatch):
    (tmp_path / "my_ray_engine.py").write_text(
        "class Mine:\n    name, block = 'mine', 1\n    def __init__(self, source, *, context): ...\n"
        "    def generate(self, requests, sampling):\n        raise RuntimeError('my engine was asked')\n"
        "    def close(self): ...\n"
    )
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(tmp_path.parent)
    monkeypatch.setenv("OFFLEASH_CORES", "")  # which a worker sets
    model = Model.of(resolve_model("lab"))
    options = {"notices": SimpleNamespace(count_start=lambda: 1), "limit": 2, "folder": str(tmp_path), "cores": 1}
    worker = Worker("my_ray_engine:Mine", model, 64, Sampling(max_new_tokens=4), {}, **options)
    with pytest.raises(EngineError, match="my engine was asked"):
        next(worker.engine.generate([Request(0, [1], 0, 1, 0)]))


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


def test_what_a_constructor_of_ones_own_raises_is_one_line_with_its_place(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_failing.py").write_text(
        "class Own:\n    def verify(self): ...\n    def correct_answers(self): ...\n"
        "    def __init__(self):\n        open('not_there.json')\n"
    )
    with pytest.raises(ConfigError, match=r"my_failing:Own.*FileNotFoundError.*not_there.json.*my_failing.py, line 5"):
        load_task("my_failing:Own")
