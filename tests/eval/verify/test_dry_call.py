"""Every mistake in a user's task is one line with the method and the problem, before anything is sampled."""

import pytest

from offleash.eval.errors import ConfigError
from offleash.eval.pool.sample import sample_pool
from offleash.eval.problem import Problem, Verdict
from offleash.eval.tasks import load_task
from offleash.eval.verify.dry_call import check_task
from offleash.train.cli import main


class Good:
    name, version = "sums", "1"

    def __init__(self):
        self.problems = [Problem(f"p{n}", f"{n}+{n}=", str(2 * n)) for n in range(4)]

    def verify(self, problems, completions, truncated=None):
        return [Verdict(text, text == p.gold, "ok") for p, text in zip(problems, completions, strict=True)]

    def correct_answers(self, problem):
        return (problem.gold,)


class TooFew(Good):
    def verify(self, problems, completions, truncated=None):
        return super().verify(problems, completions, truncated)[:1]


class Nothing(Good):
    def verify(self, problems, completions, truncated=None):
        pass


class Bare(Good):
    def verify(self, problems, completions, truncated=None):
        return [True for _ in problems]


class Counted(Good):
    def verify(self, problems, completions, truncated=None):
        return [Verdict(text, 1, "ok") for text in completions]


class Numbered(Good):
    def verify(self, problems, completions, truncated=None):
        return [Verdict(4, True, "ok") for _ in completions]


class Odd(Good):
    def verify(self, problems, completions, truncated=None):
        return [Verdict(None, False, "wrong") for _ in completions]


class Raising(Good):
    def verify(self, problems, completions, truncated=None):
        return [Verdict(str(int(p.gold) // (p.id != "p2")), False, "ok") for p in problems]


class OldSignature(Good):
    def verify(self, problems, completions):
        return super().verify(problems, completions)


class OneAnswer(Good):
    def correct_answers(self, problem):
        return problem.gold


class Lost(Good):
    def correct_answers(self, problem):
        return {"p0": ()}[problem.id]


class Unversioned(Good):
    version = 1


class Twins(Good):
    def __init__(self):
        super().__init__()
        self.problems.append(self.problems[1])


class Empty(Good):
    def __init__(self):
        self.problems = []


class Rows(Good):
    def __init__(self):
        self.problems = [{"prompt": "1+1="}]


MISTAKES = {
    TooFew: "verify returned 1 verdicts for 4",
    Nothing: "verify returned a NoneType",
    Bare: "verify returned a bool for problem 'p0'",
    Counted: r"correct=1 \(int\) for problem 'p0'",
    Numbered: r"answer=4 \(int\) for problem 'p0'",
    Odd: "status='wrong'",
    Raising: "verify fails on problem 'p2': ZeroDivisionError",
    OldSignature: "verify fails on problem 'p0': TypeError",
    OneAnswer: "correct_answers returned '0' for problem 'p0'",
    Lost: "correct_answers fails on problem 'p1': KeyError",
    Unversioned: "version must be text, got 1",
    Twins: r"problems\[1\] and \[4\] have the id 'p1'",
    Empty: "problems is empty",
    Rows: r"problems\[0\] is a dict",
}


@pytest.mark.parametrize("task", MISTAKES, ids=lambda task: task.__name__)
def test_a_mistake_is_named(task):
    with pytest.raises(ConfigError, match=MISTAKES[task]) as caught:
        check_task(task())
    assert "\n" not in str(caught.value)


def test_what_is_not_a_task_is_refused_with_what_it_lacks():
    with pytest.raises(ConfigError, match="str is not a task: it lacks name, version, problems, verify"):
        check_task("countdown")
    with pytest.raises(ConfigError, match="Good is a class"):
        check_task(Good)


def test_a_good_task_is_tried_on_every_problem_and_one_of_ours_is_not_called():
    assert check_task(Good()) == 4
    assert check_task(load_task("countdown", split="probe", n=2)) == 0


def test_a_text_that_a_verifier_cannot_judge_is_not_a_mistake():
    class Strict(Good):
        def verify(self, problems, completions, truncated=None):
            return [Verdict(None, False, "error" if "box" in text else "no_answer") for text in completions]

    assert check_task(Strict()) == 4


def test_sampling_leaves_nothing_behind(tmp_path):
    with pytest.raises(ConfigError, match="1 verdicts for 2"):
        sample_pool("lab", TooFew(), tmp_path / "pool", k=2, limit=2, progress=False)
    assert not (tmp_path / "pool").exists()


MODULE = """
from offleash.eval import Problem, Verdict
class MyTask:
    name, version = "mine", "1"
    problems = [Problem("p0", "1+1=", "2")]
    def verify(self, problems, completions, truncated=None):
        return [Verdict(text, text == p.gold, "ok") for p, text in zip(problems, completions)]
    def correct_answers(self, problem):
        return None
"""


def test_the_command_checks_any_task_and_says_what_it_could_not(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "module_to_check.py").write_text(MODULE)
    (tmp_path / "module_with_a_mistake.py").write_text(MODULE.replace("text == p.gold", "p.golden"))
    assert main(["tasks", "module_to_check:MyTask", "--check"]) == 0
    said = capsys.readouterr().out
    assert "verify and correct_answers work on 1 of 1 problems" in said
    assert "no gold_completion" in said
    assert main(["tasks", "module_with_a_mistake:MyTask", "--check"]) == 2
    assert "verify fails on problem 'p0': AttributeError" in capsys.readouterr().err
