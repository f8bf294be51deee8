"""Whatever a model writes, a verifier answers: no exception, no long wait, the same verdict every time.

Completions are built from what verifiers look for (tags, boxes, fences, numbers, golds) and from arbitrary text. The
examples are the same in every run.
"""

import time
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from offleash.eval.problem import Problem, Task, Verdict
from offleash.eval.tasks import code_tasks
from offleash.eval.tasks.change import Change
from offleash.eval.tasks.colouring import Colouring
from offleash.eval.tasks.countdown import Countdown
from offleash.eval.tasks.gym.answers import EXECUTED, NORMALIZERS, refused, spelled
from offleash.eval.tasks.gym.tasks import Gym
from offleash.eval.tasks.math_tasks import MathAnswers
from offleash.eval.tasks.text_tasks import JudgedAnswers, TextAnswers
from offleash.eval.verify.judge import Grade, GradeFile
from offleash.eval.verify.math_answers.mathematics import MathVerifier
from offleash.eval.verify.sandbox.workers import Outcome

BUDGET = 5.0  # CPU seconds for one batch: generous, a verdict takes microseconds
TRUTHS = [", ".join(words) for words in product(("yes", "no", "unknown"), repeat=3)]
CHOICES = ["10", "12", "\\frac{3}{4}", "none of these"]
PIECES = [
    *("<think>", "</think>", "<answer>", "</answer>", "<solution>", "</solution>", "\\boxed{", "}", "**", "####"),
    *("```python\n", "```\n", "```json", "def f(x):", "import os", "{", "[", "(", ")", "]", '"', ":", "\\", "\n", " "),
    *(
        "\\frac",
        "\\times",
        "\\begin{array}",
        "\\text{",
        "\\left(",
        "^\\circ",
        "^{",
        "10^{5000}",
        "1e999",
        "-",
        "/",
        ",",
    ),
    *("0", "1", "5", "...", ".", "9" * 5000, "nan", "inf", "½", "²", "٣", "∞", "\x00", "\ud800", "é", "🙂", "\u202e"),
    *("yes", "no", "unknown", "yes, no, yes", "A", "(B)", "12", "four", "square", "tetrahedra", "Paris", "Answer: "),
    *('{"a": ["x"]}', "[[", "3 * (1 + 2)", "x**2", "2^9", " or ", "the answer is "),
]
TEXT = st.one_of(
    st.lists(st.sampled_from(PIECES), max_size=12).map("".join),
    st.text(max_size=60),
    st.builds(lambda start, piece, times, end: start + piece * times + end,
              st.sampled_from(PIECES), st.sampled_from(PIECES), st.integers(1, 400), st.sampled_from(PIECES)),
)  # fmt: skip
ALWAYS = settings(
    max_examples=60, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck)
)


class NoAlgebra:
    """Stands in for the workers of computer algebra, which have a fuzz of their own."""

    def map(self, jobs: Sequence[Any]) -> list[Outcome]:
        return [Outcome("ok", {"gold_read": True, "answer_read": True, "same": False}) for _ in jobs]


class ParisOnly:
    """Stands in for a language model that judges."""

    model, prompt = "m", "p"

    def grade(self, items: Sequence[tuple[str, str, str]]) -> list[Grade]:
        return [Grade("A" if "Paris" in answer else "B") for _, _, answer in items]


class RunsNothing:
    """Stands in for the sandbox, which has tests of its own."""

    def judge(self, programs: Sequence[str], suites: Sequence[object]) -> list[Outcome]:
        return [Outcome("ok", {"passed": "return 1" in program}) for program in programs]


def text_task(rule: str, golds: Sequence[str]) -> Task:
    return TextAnswers(rule, [Problem(gold, "?", gold, {"task": rule}) for gold in golds])


def choice_task() -> Task:
    verifier = MathVerifier()
    verifier.pool = NoAlgebra()  # type: ignore[assignment]
    letters = [Problem(letter, "?", letter, {"choices": CHOICES}) for letter in "ABCD"]
    return MathAnswers("choice", [*letters, Problem("v", "?", "1.2", {"precision": 1.0})], verifier=verifier)


def judged_task() -> Task:
    problems = [Problem("j", "?", "Paris", {"question": "The capital of France?"})]
    return JudgedAnswers("judged", problems, ParisOnly())  # type: ignore[arg-type]


def code_task() -> Task:
    problems = [Problem("h", "?", ""), Problem("s", "?", "")]
    cases = '[{"input": "1", "output": "1"}]'
    tests = {"h": code_tasks.Tests("f", "assert f(1) == 1", prefix="def f(x):\n"), "s": code_tasks.Tests(public=cases)}
    task = code_tasks.CodeAnswers("code", problems, tests)
    task.__dict__["verifier"] = RunsNothing()
    return task


TASKS: dict[str, Task] = {
    "spatial": text_task("spatial", ["0", "4", "5", "12", "tetrahedra", "triangle", "square"]),
    "web_of_lies_v2": text_task("web_of_lies_v2", TRUTHS),
    "typos": text_task("typos", ["the answer is four", "the anser is four"]),
    "choice": choice_task(),
    "judged": judged_task(),
    "code": code_task(),
    "countdown": Countdown(split="probe", n=8),
    "colouring": Colouring(split="probe", n=8),
    "change": Change(split="probe", n=8),
}


def verdicts(task: Task, completion: str) -> list[Verdict]:
    """One per problem, within the budget."""
    started = time.process_time()
    found = task.verify(task.problems, [completion] * len(task.problems))
    assert time.process_time() - started < BUDGET, completion[:100]
    return found


@pytest.mark.parametrize("name", TASKS)
def test_every_text_has_a_verdict_and_always_the_same(name: str) -> None:
    task = TASKS[name]

    @given(TEXT)
    @ALWAYS
    @example("")
    @example("\\boxed{10^{5000}}")
    def check(completion: str) -> None:
        found = verdicts(task, completion)
        assert {one.status for one in found} <= {"ok", "no_answer"}, [one.message for one in found]
        assert verdicts(task, completion) == found
        assert [task.verify([p], [completion])[0] for p in task.problems[:3]] == found[:3]
        for problem, one in zip(task.problems, found, strict=True):
            assert one.correct <= (one.status == "ok")
            listed = task.correct_answers(problem)
            assert listed is None or (one.answer in listed) == one.correct
        cut = task.verify(task.problems, [completion] * len(found), [True] * len(found))
        assert {one.status for one in cut} <= {"ok", "truncated"}

    check()


@pytest.mark.parametrize("name", ["spatial", "web_of_lies_v2", "typos", "choice"])
def test_no_text_is_right_for_two_golds(name: str) -> None:
    task = TASKS[name]
    golds = [problem.gold for problem in task.problems]
    marks = ["**", "<solution>", "</solution>", "\\boxed{", "}", " or ", ", ", "\n", " ", *golds, *golds]

    @given(st.lists(st.sampled_from(marks), min_size=2, max_size=12).map("".join))
    @ALWAYS
    @example("".join(f"<solution>{gold}</solution>" for gold in golds))
    @example(f"**{' '.join(golds)}**")
    def check(completion: str) -> None:
        assert sum(one.correct for one in verdicts(task, completion) if one.status == "ok") <= 1

    check()


@pytest.mark.parametrize("dataset", sorted({*NORMALIZERS, *EXECUTED}))
def test_spellings_of_gym_answers_end_and_stay(dataset: str) -> None:
    @given(TEXT)
    @ALWAYS
    @example("\\frac1" + " " * 10_000 + "x")
    @example("\\sqrt{10^{5000}}")
    @example('[{"a": ' + "[" * 900 + "]" * 900 + "}]")
    def check(answer: str) -> None:
        started = time.process_time()
        once = spelled(dataset, answer)
        refused(dataset, once)
        assert time.process_time() - started < BUDGET
        assert spelled(dataset, answer) == once

    check()


GYMS = ("dice", "prime_factorization", "game_of_life", "boxnet", "countdown", "complex_arithmetic", "graph_color",
        "simple_integration", "time_intervals", "word_ladder", "sudoku", "rush_hour")  # fmt: skip


@pytest.fixture(scope="module")
def gyms() -> Iterator[list[Gym]]:
    """Share one pool of workers: importing reasoning-gym takes seconds."""
    made = [Gym(name, size=1, seed=1, job_seconds=60) for name in GYMS]
    for task in made:
        task.pool = made[0].pool
    yield made
    made[0].pool.close()


def test_every_answer_to_a_gym_task_has_a_verdict(gyms: list[Gym]) -> None:
    answers: list[str] = []

    @given(TEXT)
    @ALWAYS
    def collect(answer: str) -> None:
        answers.append(answer)

    collect()
    for task in gyms:
        problems = [task.problems[0]] * len(answers)
        completions = [f"<answer>{answer}</answer>" for answer in answers]
        found = task.verify(problems, completions)
        assert {one.status for one in found} <= {"ok", "no_answer"}, (task.name, [one.message for one in found])
        assert not any(one.correct for one in found), task.name
        task.known.clear()
        assert task.verify(problems, completions) == found, task.name


def test_a_file_of_grades_survives_any_key(tmp_path: Path) -> None:
    file = GradeFile(tmp_path / "grades.jsonl")

    @given(TEXT)
    @ALWAYS
    def check(key: str) -> None:
        file.add(key, "A")

    check()
    assert GradeFile(file.path).grades == file.grades
