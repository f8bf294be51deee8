"""Countdown: the enumerator against brute force, verdicts, splits, hostile input."""

import time

import numpy as np
import pytest

from offleash.eval.errors import ConfigError
from offleash.eval.problem import Problem
from offleash.eval.tasks import load_task
from offleash.eval.tasks.arithmetic import parse
from offleash.eval.tasks.countdown import Countdown
from offleash.eval.tasks.generated import SPLITS
from offleash.train.cli import main
from tests.eval.tasks.trees import fully_parenthesised, python_value


def problem(*numbers: int, target: int) -> Problem:
    return Problem("x", "", "", {"numbers": list(numbers), "target": target})


@pytest.fixture(scope="module")
def probe() -> Countdown:
    return Countdown(split="probe", n=128)


def solution(text: str) -> str | None:
    """The solution that a text is; None if it is not an expression."""
    expression = parse(text)
    return expression.solution if expression else None


def spelling(text: str) -> str:
    expression = parse(text)
    assert expression is not None
    return expression.spelling


@pytest.mark.parametrize("numbers", [2, 3, 4])
def test_enumeration_equals_brute_force_over_trees_and_orders(numbers: int) -> None:
    task = Countdown(n=40 if numbers < 4 else 3, numbers=numbers, strict=True)
    for one in [*task.problems, problem(*(3, 3, 5, 6)[:numbers], target=0)]:
        brute: dict[str | None, set[str]] = {}
        for text in fully_parenthesised(tuple(one.meta["numbers"])):
            if python_value(text) == one.meta["target"]:
                brute.setdefault(solution(text), set()).add(spelling(text))
        assert list(task.correct_answers(one)) == sorted(map(str, brute))
        assert {answer: set(task.spellings(one, answer)) for answer in task.correct_answers(one)} == brute


HOSTILE = [
    "9" * 100_000,
    "(" * 100_000,
    "(" * 99 + "1" + ")" * 99,
    "9**9**9",
    "1+" * 50_000 + "1",
    "٣+4",
    "3²",
    "\x003+4",
    "3+4\x00",
    "🙂",
    "３+4",
    "-3+4",
    "3--4",
    "+3",
    "3/4",
    "3 4",
    "03+4",
    "1_0+2",
    "1e2",
    "0x10",
    "3+",
    "()",
    "(3+4",
    "3+4)",
    "3(4)",
    "__import__('os')",
    "",
    " " * 1_000_000,
    "3\u00a0+4",
    "1234567",
]


def test_hostile_completions_get_a_verdict_quickly() -> None:
    task = Countdown(n=1)
    start = time.process_time()
    verdicts = task.verify(task.problems * len(HOSTILE), HOSTILE)
    assert time.process_time() - start < 10
    assert {(v.answer, v.correct, v.status, v.extracted_by) for v in verdicts} == {(None, False, "no_answer", "")}


def test_gold_scores_one_and_every_enumerated_answer_is_correct(probe: Countdown) -> None:
    for one in probe.problems:
        answers = probe.correct_answers(one)
        assert answers[0] == one.gold
        verdicts = probe.verify([one] * len(answers), answers)
        assert [(v.answer, v.correct, v.status, v.extracted_by) for v in verdicts] == [
            (answer, True, "ok", "expression") for answer in answers
        ]


def test_wrong_value_wrong_numbers_and_reused_numbers_are_wrong_but_have_a_class() -> None:
    task = Countdown(n=1)
    one = problem(3, 7, 25, target=46)
    wrong = ["3+7+25", "25+21", "46", "3*7+25+0", "(3*7)+25*1", "25+7+7+7"]
    verdicts = task.verify([one] * len(wrong), wrong)
    assert not any(v.correct for v in verdicts)
    assert [v.answer for v in verdicts] == [solution(text) for text in wrong]
    assert {v.status for v in verdicts} == {"ok"}
    assert task.verify([one], ["3*7+25"])[0].correct


def test_a_number_given_twice_must_be_used_twice() -> None:
    task = Countdown(n=1)
    assert task.correct_answers(problem(5, 5, 2, target=20)) == ("2*(5+5)",)
    assert not task.verify([problem(5, 5, 2, target=10)], ["5*2"])[0].correct


def test_negative_intermediate_values_are_allowed() -> None:
    task = Countdown(n=1)
    assert task.verify([problem(3, 7, 25, target=21)], ["3-7+25"])[0].correct


def test_truncated_completion_has_no_answer_even_if_it_parses(probe: Countdown) -> None:
    one = probe.problems[0]
    verdicts = probe.verify([one] * 3, [one.gold, one.gold, "3+"], [True, False, True])
    assert [(v.answer, v.correct, v.status) for v in verdicts] == [
        (None, False, "truncated"),
        (one.gold, True, "ok"),
        (None, False, "truncated"),
    ]


STRICT_OR_NOT = [False, True]


@pytest.mark.parametrize("strict", STRICT_OR_NOT)
def test_every_text_of_a_solution_is_verified_as_that_solution(strict: bool) -> None:
    task = Countdown(n=128, strict=strict)
    for one in task.problems:
        for answer in task.correct_answers(one):
            texts = task.spellings(one, answer)
            assert answer in texts
            assert len(set(texts)) == len(texts)
            verdicts = task.verify([one] * len(texts), texts)
            assert {(v.answer, v.correct, v.status) for v in verdicts} == {(answer, True, "ok")}
            assert [v.spelling for v in verdicts] == [spelling(text) for text in texts]


def test_a_strict_task_reads_a_text_exactly_if_it_is_its_own_spelling() -> None:
    one = problem(3, 7, 25, target=46)
    strict, other = Countdown(n=1, strict=True), Countdown(n=1)
    assert strict.version != other.version  # so that their pools are never taken for one another
    assert strict.spellings(one, "25+3*7") == ("25+3*7", "25+7*3", "3*7+25", "7*3+25")
    texts = set(other.spellings(one, "25+3*7")) | {"3*7+25\n", " 3*7+25", "3 * 7+25", "((3*7))+25", "3*7+25 "}
    assert all(verdict.correct for verdict in other.verify([one] * len(texts), sorted(texts)))
    verdicts = strict.verify([one] * len(texts), sorted(texts))
    read = {text for text, verdict in zip(sorted(texts), verdicts, strict=True) if verdict.correct}
    assert read == set(strict.spellings(one, "25+3*7"))
    assert {v.status for v in verdicts if not v.correct} == {"no_answer"}


def test_spellings_of_what_is_not_a_solution_are_refused() -> None:
    one = problem(3, 7, 25, target=46)
    for answer in ("3+", "3*7+25", "3+7+25"):
        with pytest.raises(ConfigError, match="not a solution"):
            Countdown(n=1).spellings(one, answer)


def test_problems_have_as_many_solutions_as_was_asked_for() -> None:
    task = Countdown(split="validation", n=20, numbers=4, max_number=12, min_solutions=3, max_solutions=5)
    counts = [len(task.correct_answers(one)) for one in task.problems]
    assert min(counts) >= 3
    assert max(counts) <= 5
    assert len(set(counts)) > 1
    wide = Countdown(split="validation", n=400, numbers=4, max_number=12)
    chosen = [one for one in wide.problems if 3 <= len(wide.correct_answers(one)) <= 5]
    assert task.problems[: len(chosen)] == chosen[: len(task.problems)]


def key(one: Problem) -> tuple[tuple[int, ...], int]:
    return tuple(sorted(one.meta["numbers"])), one.meta["target"]


def test_problems_fit_the_limits_and_have_an_answer() -> None:
    task = Countdown(split="validation", n=200, seed=3, numbers=4, max_number=9, max_target=50)
    for one in task.problems:
        assert len(one.meta["numbers"]) == 4
        assert all(1 <= number <= 9 for number in one.meta["numbers"])
        assert 1 <= one.meta["target"] <= 50
        assert task.correct_answers(one)


def test_problems_are_the_ones_the_shipped_numbers_were_measured_on(probe: Countdown) -> None:
    """A change here (of the generator, or of numpy's stream) makes every published lab number another experiment."""
    assert [p.id for p in probe.problems[:4]] == PINNED
    assert probe.problems[1].prompt == "11 13 18 = 185:"
    assert probe.problems[1].meta == {"numbers": [11, 13, 18], "target": 185}
    assert len({p.id for p in probe.problems}) == 128


PINNED = ["countdown-11-1-1-10", "countdown-11-13-18-185", "countdown-2-3-10-23", "countdown-11-10-18-17"]


def test_three_number_problems_mostly_have_one_solution_in_about_five_spellings() -> None:
    task = Countdown(split="train", n=2000, strict=True)
    spelled = [[task.spellings(p, answer) for answer in task.correct_answers(p)] for p in task.problems]
    assert np.mean([len(texts) == 1 for texts in spelled]) > 0.9
    assert 4.5 < np.mean([sum(map(len, texts)) for texts in spelled]) < 5.3


def test_more_problems_than_exist_are_refused_and_all_that_exist_are_found() -> None:
    exist = {(pair, value) for pair in pairs_up_to(5) for value in values_of(*pair) if value >= 1}
    found: set[tuple[tuple[int, ...], int]] = set()
    for split in SPLITS:
        with pytest.raises(ConfigError, match=f"n=999.*{split}") as caught:
            Countdown(split=split, n=999, numbers=2, max_number=5)
        count = int(str(caught.value).split("but only ")[1].split()[0])
        found |= {key(p) for p in Countdown(split=split, n=count, numbers=2, max_number=5).problems}
    assert found == exist


def pairs_up_to(top: int) -> list[tuple[int, int]]:
    return [(a, b) for a in range(1, top + 1) for b in range(a, top + 1)]


def values_of(a: int, b: int) -> set[int]:
    return {a + b, a - b, b - a, a * b}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"split": "test"}, "train, validation, probe"),
        ({"n": 0}, "n .*1.* 0"),
        ({"numbers": 1}, "numbers .*2"),
        ({"numbers": 9}, "numbers .*5"),
        ({"max_number": 0}, "max_number .*1"),
        ({"max_target": 0}, "max_target .*1"),
        ({"seed": -1}, "seed .*0"),
        ({"n": "6"}, "n .*'6'"),
        ({"n": 2.5}, "n .*2.5"),
        ({"seed": True}, "seed .*True"),
        ({"max_target": None}, "max_target .*None"),
        ({"min_solutions": 0}, "min_solutions .*1"),
        ({"min_solutions": 3, "max_solutions": 2}, "max_solutions .*3"),
        ({"strict": "yes"}, "strict .*'yes'"),
    ],
)
def test_unusable_arguments_are_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_task("countdown", **arguments)


@pytest.mark.parametrize(
    ("words", "message"),
    [(["--limit", "0"], "--limit"), (["--show", "-1"], "--show")],
)
def test_the_list_of_tasks_names_the_flag_that_makes_no_sense(
    capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert main(["tasks", "countdown", *words]) == 2
    assert message in capsys.readouterr().err


def test_load_task_by_name_and_by_dotted_path_agree() -> None:
    by_name = load_task("countdown", n=5, seed=2)
    by_path = load_task("offleash.eval.tasks.countdown:Countdown", n=5, seed=2)
    assert isinstance(by_name, Countdown)
    assert by_name.problems == by_path.problems


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("countdwn", "countdown"),
        ("zzz", ".*countdown"),
        ("no_such_module:Task", "no_such_module"),
        ("offleash.eval.tasks.countdown:Nope", "'Nope'"),
        ("fractions:Fraction", "verify, correct_answers"),
    ],
)
def test_unknown_task_names_say_what_to_do(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_task(name)


def test_arguments_a_task_does_not_take_are_refused_in_one_line() -> None:
    with pytest.raises(ConfigError, match=r"'size'.* split, n, ") as caught:
        load_task("countdown", size=3)
    assert "\n" not in str(caught.value)
    with pytest.raises(ConfigError, match="'name'"):
        load_task("countdown", name="x")
