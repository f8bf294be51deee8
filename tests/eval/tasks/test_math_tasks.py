"""Math problems: verdicts, statuses, and what they are called."""

from collections.abc import Iterator

import pytest

from offleash.eval.errors import ConfigError
from offleash.eval.problem import Problem
from offleash.eval.tasks.math_tasks import NUMBER_STEPS, MathAnswers

PROBLEMS = [Problem("a", "1+1?", "2", {"level": 3}), Problem("b", "half?", "\\frac{1}{2}")]


@pytest.fixture
def task() -> Iterator[MathAnswers]:
    made = MathAnswers("small", PROBLEMS)
    yield made
    made.verifier.close()


def test_gold_scores_and_wrong_does_not(task: MathAnswers) -> None:
    for problem in task.problems:
        right, wrong = task.verify([problem] * 2, [task.gold_completion(problem), "\\boxed{77}"])
        assert (right.correct, right.status, right.extracted_by) == (True, "ok", "boxed")
        assert (wrong.correct, wrong.status, wrong.answer) == (False, "ok", "77")
        assert task.correct_answers(problem) == (right.answer,)


def test_every_case_has_its_status(task: MathAnswers) -> None:
    completions = ["\\boxed{2}", "two", "two and so on", "<think>\\boxed{2}", "\\boxed{2} and so on"]
    cut = [False, False, True, True, True]
    verdicts = task.verify([task.problems[0]] * 5, completions, cut)
    assert [(v.answer, v.correct, v.status) for v in verdicts] == [
        ("2", True, "ok"),
        (None, False, "no_answer"),
        (None, False, "truncated"),
        (None, False, "truncated"),
        ("2", True, "ok"),
    ]


def test_classes_merge_spellings_and_right_answers_share_the_golds(task: MathAnswers) -> None:
    spellings = ["0.5", "1/2", ".50", "\\dfrac12", "0.25", "1/4"]
    verdicts = task.verify([task.problems[1]] * 6, [f"\\boxed{{{spelling}}}" for spelling in spellings])
    assert [verdict.answer for verdict in verdicts] == ["1/2"] * 4 + ["1/4"] * 2
    assert [verdict.correct for verdict in verdicts] == [True] * 4 + [False] * 2


def test_the_version_depends_on_what_could_change_a_verdict(task: MathAnswers) -> None:
    versions = [
        MathAnswers("small", PROBLEMS, **settings).version  # type: ignore[arg-type]
        for settings in ({}, {"steps": NUMBER_STEPS}, {"thinking": True}, {"tolerance": 0.05})
    ]
    assert versions[0] == task.version
    assert len(set(versions)) == 4


def test_prose_is_read_only_when_asked(task: MathAnswers) -> None:
    loose = MathAnswers("small", PROBLEMS, steps=NUMBER_STEPS)
    assert task.verify([task.problems[0]], ["The answer is 2."])[0].status == "no_answer"
    verdict = loose.verify([loose.problems[0]], ["The answer is 2."])[0]
    assert (verdict.correct, verdict.extracted_by) == (True, "phrase")


def test_duplicated_ids_are_named() -> None:
    with pytest.raises(ConfigError, match="'a'"):
        MathAnswers("bad", [PROBLEMS[1], PROBLEMS[0], PROBLEMS[0]])


@pytest.mark.parametrize(
    ("gold", "answer", "right"),
    [
        ("0.5", "0.51", True),
        ("0.5", "0.5\\%", False),
        ("0.5", "50.1\\%", True),
        ("50", "50.1\\%", True),
        ("50\\%", "50.1", True),
        ("10\\text{ cm}", "10.1", True),
        ("10\\text{ cm}", "10.1\\text{ m}", False),
        ("101", "102_8", False),
        ("x = 3", "y = 3.01", False),
    ],
)
def test_near_is_in_the_same_unit_base_and_scale(gold: str, answer: str, right: bool) -> None:
    task = MathAnswers("near", [Problem("a", "?", gold)], tolerance=0.05)
    assert task.verify(list(task.problems), [f"\\boxed{{{answer}}}"])[0].correct is right
    task.verifier.close()


def test_a_percent_sign_outlives_the_rounding() -> None:
    problems = [Problem(gold, "?", gold, {"precision": 1}) for gold in ("0.5", "50.0")]
    task = MathAnswers("rounded", problems)
    assert [v.correct for v in task.verify(problems, ["\\boxed{0.5\\%}", "\\boxed{49.96\\%}"])] == [False, True]
    task.verifier.close()


@pytest.mark.parametrize("answer", ["...", "1, 2, \\ldots, 10", "1+2+\\cdots+n", ".", "\\frac{.}{.}"])
def test_dots_are_an_answer_like_any_other(task: MathAnswers, answer: str) -> None:
    verdict = task.verify([task.problems[0]], [f"\\boxed{{{answer}}}"])[0]
    assert (verdict.correct, verdict.status) == (False, "ok")


def test_dots_in_a_gold_do_not_stop_its_preflight() -> None:
    task = MathAnswers("dots", [Problem(gold, "?", gold) for gold in ("...", "1, 2, \\ldots, 10", "5")])
    assert {name for name, _ in task.gold_faults()} <= {"...", "1, 2, \\ldots, 10"}
    task.verifier.close()
