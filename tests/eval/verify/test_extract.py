"""Where the answer is: the cascade, step by step, and thinking in its three cases."""

import time

import pytest

from offleash.eval.verify.extract import MATH_STEPS, TAGGED_STEPS, Found, extract, final_phrase, last_boxed, last_number

NUMBERS = (*MATH_STEPS, ("phrase", final_phrase), ("last_number", last_number))


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("\\boxed{5}", "5"),
        ("\\boxed{1} then \\boxed{2}", "2"),
        ("\\boxed{\\frac{1}{2}}", "\\frac{1}{2}"),
        ("\\boxed{\\{1, 2\\}}", "\\{1, 2\\}"),
        ("\\boxed{\\text{a \\} b}}", "\\text{a \\} b}"),
        ("\\boxed{\\boxed{3}}", "3"),
        ("\\boxed {4}", "4"),
        ("\\fbox{6}", "6"),
        ("\\boxed 7.", "7"),
        ("\\boxed{8} and then \\boxed{9", "8"),
        ("\\boxed{", None),
        ("boxed{5}", None),
        ("", None),
    ],
)
def test_the_last_complete_box(text: str, answer: str | None) -> None:
    assert last_boxed(text) == answer


def test_thinking_closed_unclosed_and_absent() -> None:
    assert extract("\\boxed{1}", MATH_STEPS) == ("1", "boxed")
    assert extract("<think>\\boxed{1}</think>\\boxed{2}", MATH_STEPS) == ("2", "boxed")
    assert extract("<think>so \\boxed{1}", MATH_STEPS) == Found(None, "")
    assert extract("<think>a</think>\\boxed{1}<think>again", MATH_STEPS) == Found(None, "")
    assert extract("<think>\\boxed{1}</think>", MATH_STEPS) == Found(None, "")


def test_a_block_opened_by_the_prompt() -> None:
    assert extract("so it is 5 \\boxed{5}", MATH_STEPS, opened=True) == Found(None, "")
    assert extract("so it is 5</think>\\boxed{5}", MATH_STEPS, opened=True) == ("5", "boxed")


def test_a_short_text_after_thinking_is_the_answer_of_last_resort() -> None:
    assert extract("<think>x</think>\n 42 ", MATH_STEPS) == ("42", "after_think")
    assert extract("<think>x</think>" + "word " * 200, MATH_STEPS) == Found(None, "")
    assert extract("42", MATH_STEPS) == Found(None, "")


def test_the_order_of_steps_is_the_tasks_own() -> None:
    text = "<answer>1</answer> \\boxed{2}"
    assert extract(text, MATH_STEPS) == ("2", "boxed")
    assert extract(text, TAGGED_STEPS) == ("1", "answer_tag")
    assert extract("<answer>1</answer><answer> 2 </answer>", TAGGED_STEPS) == ("2", "answer_tag")
    assert extract("<answer>1</answer><answer>2", TAGGED_STEPS) == ("1", "answer_tag")
    assert extract("<answer></answer>\\boxed{3}", TAGGED_STEPS) == ("3", "boxed")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("...so 5 + 5\n#### 10", ("10", "phrase")),
        ("Work.\nA: 26", ("26", "phrase")),
        ("**Answer:** $18", ("$18", "phrase")),
        ("The answer is 1,234. That is all.", ("1,234", "phrase")),
        ("The final answer is: 0.5", ("0.5", "phrase")),
        ("First 3 apples, then $1,250.50 in total", ("$1,250.50", "last_number")),
        ("no number at all", (None, "")),
        ("\\boxed{3} or A: 4", ("3", "boxed")),
    ],
)
def test_prose_answers(text: str, found: tuple[str | None, str]) -> None:
    assert extract(text, NUMBERS) == found


@pytest.mark.parametrize(
    "text",
    ["\\boxed{" * 200_000, "\\boxed{1}" * 100_000, "<answer>" * 200_000, "\n" * 2_000_000, "A:" * 500_000,
     "{" * 2_000_000, "\\boxed " * 300_000, "<think>" * 300_000,
     "answer is " * 200_000, "1" * 3_000_000, "\x00" * 2_000_000],
    ids=lambda text: repr(text[:12]),
)  # fmt: skip
def test_extraction_stays_quick_on_hostile_text(text: str) -> None:
    started = time.process_time()
    extract(text, NUMBERS)
    assert time.process_time() - started < 10
