"""Making change: the enumerator against every chain and list of coins, and what a wrong chain is worth."""

import re
from itertools import accumulate, product

import pytest

from offleash.eval.errors import ConfigError
from offleash.eval.problem import Problem
from offleash.eval.tasks import load_task
from offleash.eval.tasks.change import Change


@pytest.fixture(scope="module")
def probe() -> Change:
    return Change(split="probe", n=128)


def problem(*values: int, total: int, max_coins: int = 5) -> Problem:
    return Problem("x", "", "", {"values": list(values), "total": total, "max_coins": max_coins})


def test_exactly_the_texts_that_verify_calls_correct_are_listed() -> None:
    """Every string of up to seven of the characters that a completion of this problem can have."""
    task = Change(n=1)
    one = problem(2, 4, total=4, max_coins=2)
    strings = ["".join(letters) for length in range(1, 8) for letters in product("24>| ", repeat=length)]
    verdicts = task.verify([one] * len(strings), strings)
    right = {text for text, verdict in zip(strings, verdicts, strict=True) if verdict.correct}
    assert right == {"4|4", "2>4|2 2"}
    assert right == {text for answer in task.correct_answers(one) for text in task.spellings(one, answer)}


def test_exactly_the_orders_of_coins_that_verify_calls_correct_are_listed() -> None:
    """Every sequence of coins, with every sequence of coins as its answer."""
    task = Change(n=4, values=3, max_value=6, max_coins=3, min_answers=2)
    for one in task.problems:
        sequences = [s for size in range(1, 5) for s in product([*one.meta["values"], 7], repeat=size)]
        texts = [
            f"{'>'.join(map(str, accumulate(added)))}|{' '.join(map(str, answer))}"
            for added, answer in product(sequences, repeat=2)
            if len(added) == len(answer)
        ]
        verdicts = task.verify([one] * len(texts), texts)
        right = {text: v.answer for text, v in zip(texts, verdicts, strict=True) if v.correct}
        listed = {text: answer for answer in task.correct_answers(one) for text in task.spellings(one, answer)}
        assert right == listed
        assert all(v.spelling == text.split("|")[0] for text, v in zip(texts, verdicts, strict=True))
        assert list(task.correct_answers(one)) == sorted(set(right.values()))


def test_the_answer_of_a_text_is_listed_exactly_when_it_is_correct(probe: Change) -> None:
    one = problem(3, 5, 8, total=24)
    right = ["8>16>21>24|3 5 8 8", "3>8>16>24|3 5 8 8", "8>16>24|8 8 8"]
    wrong = {
        "8>17>21>24|3 5 8 8": "3 5 8 8 by 8>17>21>24",  # a total that no coin leads to
        "8>16>24|3 5 8 8": "3 5 8 8 by 8>16>24",  # coins of another chain
        "8>16>21>24|8 8 5 3": "8 8 5 3 by 8>16>21>24",  # not sorted
        "3>8>16>21|3 5 5 8": "3 5 5 8",  # another total
        "4>12>16>24|4 4 8 8": "4 4 8 8",  # not a coin of this problem
        "3>6>9>12>15>18>21>24|3 3 3 3 3 3 3 3": "3 3 3 3 3 3 3 3",  # too many coins
        "24>16>8|3 5 8 8": "3 5 8 8 by 24>16>8",
    }
    assert [v.correct for v in probe.verify([one] * 3, right)] == [True] * 3
    verdicts = probe.verify([one] * len(wrong), list(wrong))
    assert [(v.answer, v.correct, v.status) for v in verdicts] == [(name, False, "ok") for name in wrong.values()]
    assert not set(wrong.values()) - {"3 5 8 8"} & set(probe.correct_answers(one))


@pytest.mark.parametrize(
    "text",
    [
        "", "|", "24", "8>16>24", "8>16>24|", "|8 8 8", "8>16>24|8  8 8", "8>16>24|8 8 8 ", " 8>16>24|8 8 8",
        "8>16>24|8 8 8\n", "8>>24|8 8 8", "08>16>24|8 8 8", "0>8>16>24|8 8 8", "8>16>24|8 8 8|8 8 8", "8>16>24|8,8,8",
        "８>16>24|8 8 8", "8>16>24|8 8 ٨", "-8>16|8 8", "9" * 10**6, "8>" * 10**5 + "8|8",
    ],
)  # fmt: skip
def test_a_text_of_another_form_is_no_answer(probe: Change, text: str) -> None:
    verdict = probe.verify([problem(3, 5, 8, total=24)], [text])[0]
    assert (verdict.answer, verdict.correct, verdict.status, verdict.extracted_by) == (None, False, "no_answer", "")


def test_problems_fit_the_limits_and_their_gold_is_right(probe: Change) -> None:
    for one in probe.problems:
        values, total = one.meta["values"], one.meta["total"]
        assert one.prompt == f"{' '.join(map(str, values))} = {total}:"
        assert values == sorted(set(values) & set(range(2, 16)))
        assert len(values) == 4
        answers = probe.correct_answers(one)
        assert len(answers) >= 3
        assert all(sum(map(int, answer.split())) == total and len(answer.split()) <= 5 for answer in answers)
        assert probe.verify([one], [one.gold])[0].correct
        assert sum(len(probe.spellings(one, answer)) for answer in answers) < 300


def test_a_truncated_completion_has_no_answer(probe: Change) -> None:
    one = probe.problems[0]
    assert probe.verify([one], [one.gold], [True])[0].status == "truncated"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_coins": 7}, "max_coins .*6.* 7"),
        ({"values": 4, "max_value": 4}, "no 4 different values from 2 to 4"),
        ({"max_value": 100}, "max_value .*99"),
        ({"min_answers": 999}, "n=128.*999"),
    ],
)
def test_unusable_arguments_are_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_task("change", **arguments)


def test_the_lists_of_coins_are_sorted_as_texts(probe: Change) -> None:
    for one in probe.problems:
        answers = probe.correct_answers(one)
        assert list(answers) == sorted(answers)
        assert all(re.fullmatch(r"[1-9]\d?( [1-9]\d?)*", answer) for answer in answers)
