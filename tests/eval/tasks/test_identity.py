import importlib
import sys

import pytest

from offleash.eval.errors import ConfigError
from offleash.eval.problem import Problem, Verdict
from offleash.eval.tasks import load_task
from offleash.eval.tasks.identity import add_code_version

MODULE = """
from offleash.eval import Problem, Verdict
def right(problem, text):
    return text == problem.gold
class MyTask:
    name, version = "mine", "1"
    problems = [Problem("p0", "1+1=", "2")]
    def verify(self, problems, completions, truncated=None):
        return [Verdict(text, right(p, text), "ok") for p, text in zip(problems, completions)]
    def correct_answers(self, problem):
        return None
"""


def test_an_edited_helper_of_a_users_task_is_another_version(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def version(text):
        (tmp_path / "module_with_version.py").write_text(text)
        sys.modules.pop("module_with_version", None)
        importlib.invalidate_caches()
        return load_task("module_with_version:MyTask").version

    first = version(MODULE)
    assert first.startswith("1+code.")
    assert first == version(MODULE.replace("class MyTask", "# a remark\nclass MyTask"))
    assert first != version(MODULE.replace("text == problem.gold", "problem.gold in text"))
    sys.modules.pop("module_with_version", None)


class Mine:
    name, version = "mine", "1"
    problems = (Problem("p0", "1+1=", "2"),)

    def verify(self, problems, completions, truncated=None):
        return [Verdict(text, text == "2", "ok") for text in completions]


def test_the_fingerprint_is_added_once_and_tasks_of_ours_keep_their_version():
    task, ours = Mine(), load_task("countdown", split="probe", n=1)
    add_code_version(task)
    once = task.version
    add_code_version(task)
    assert task.version == once != Mine.version
    before = ours.version
    add_code_version(ours)
    assert ours.version == before


def test_a_version_that_cannot_be_set_is_refused():
    class Fixed(Mine):
        @property
        def version(self):
            return "1"

    with pytest.raises(ConfigError, match="version"):
        add_code_version(Fixed())
