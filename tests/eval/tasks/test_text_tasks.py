"""One reply is one answer: lists, hedges and all options at once win nothing in the text and choice tasks."""

from collections.abc import Sequence
from itertools import product

import pytest

from offleash.eval.problem import Problem
from offleash.eval.tasks.answer_task import AnswerTask
from offleash.eval.tasks.math_tasks import MathAnswers
from offleash.eval.tasks.text_tasks import TextAnswers

NUMBERS = [str(n) for n in range(11)]
SHAPES = ["tetrahedra", "tetrahedron", "triangle", "square", "circle"]
TRUTHS = [", ".join(words) for words in product(("yes", "no", "unknown"), repeat=3)]
CHOICES = ["10", "12", "\\frac{3}{4}", "none of these", "$x^2$"]
SENTENCE = "We show that the {} is {} and that it {} for every graph."
TEXTS = [SENTENCE.format(*words) for words in product(("result", "rezult"), ("tight", "tihgt"), ("holds", "hold"))]


def text_task(rule: str, golds: Sequence[str]) -> TextAnswers:
    return TextAnswers(rule, [Problem(gold, "?", gold, {"task": rule}) for gold in golds])


TASKS: dict[str, tuple[AnswerTask, list[str]]] = {
    "spatial": (text_task("spatial", NUMBERS + SHAPES), NUMBERS + SHAPES),
    "web_of_lies_v2": (text_task("web_of_lies_v2", TRUTHS), TRUTHS),
    "typos": (text_task("typos", TEXTS), TEXTS),
    "letters": (MathAnswers("c", [Problem(x, "?", x, {"choices": CHOICES}) for x in "ABCDE"]), list("ABCDE")),
    "options": (MathAnswers("c", [Problem(x, "?", x, {"choices": CHOICES}) for x in "ABCDE"]), CHOICES),
}
WRAPPERS = ("{}", "**{}**", "\\boxed{{{}}}", "<solution>{}</solution>", "<answer>{}</answer>", "({})", "Answer: {}")
JOINTS = (", ", " or ", " and ", "/", " ", "\n", "; ", " \\text{ or } ", ". No: ", " | ", "", " (or ", " not ")


def wins(task: AnswerTask, reply: str) -> list[str]:
    """The golds for which a reply is right."""
    verdicts = task.verify(task.problems, [reply] * len(task.problems))
    assert {verdict.status for verdict in verdicts} <= {"ok", "no_answer"}
    return [problem.gold for problem, verdict in zip(task.problems, verdicts, strict=True) if verdict.correct]


@pytest.mark.parametrize("name", TASKS)
def test_a_list_of_guesses_is_right_for_one_gold_at_most(name: str) -> None:
    task, guesses = TASKS[name]
    cheats = []
    for wrapper, joint in product(WRAPPERS, JOINTS):
        some = [guesses[:2], guesses[-2:], guesses[::-1][:3], guesses]
        cheats += [wrapper.format(joint.join(few)) for few in some]
        cheats += [joint.join(wrapper.format(guess) for guess in few) for few in some]
    assert {cheat: won for cheat in cheats if len(won := wins(task, cheat)) > 1} == {}


@pytest.mark.parametrize(
    "cheat",
    [
        "".join(f"<solution>{gold}</solution>" for gold in [*NUMBERS, *SHAPES, "none"]),
        "**tetrahedra, triangle**",
        "**square triangle**",
        "**not a square**",
        "**triangle or square**",
        " ".join(f"**{gold}**" for gold in [*NUMBERS, *SHAPES, "all of them"]),
    ],
)
def test_what_used_to_win_spatial_wins_nothing(cheat: str) -> None:
    assert wins(TASKS["spatial"][0], cheat) == []


@pytest.mark.parametrize("text", ["all of the above", "any", "A-E", "ABCDE", "A or B", "{A,B,C,D,E}", "A, B, C, D, E"])
def test_all_options_are_none(text: str) -> None:
    for reply in (f"\\boxed{{{text}}}", f"\\boxed{{\\text{{{text}}}}}"):
        assert wins(TASKS["letters"][0], reply) == []


@pytest.mark.parametrize(
    ("name", "reply", "gold"),
    [
        ("spatial", "**Count:** I see **3** cubes, so **four**.", "4"),
        ("spatial", "It is **four**. **Note:** I counted twice.", "4"),
        ("spatial", "**two regular tetrahedra**", "tetrahedra"),
        ("spatial", "<solution>3</solution> No. <solution>a square</solution>", "square"),
        ("spatial", "\\boxed{7}", "7"),
        ("web_of_lies_v2", "<solution>yes, no, unknown</solution>", "yes, no, unknown"),
        ("web_of_lies_v2", "So it is yes, no, no.", "yes, no, no"),
        ("typos", f"The original:\n{TEXTS[-1]}\nCorrected:\n{TEXTS[0]}", TEXTS[0]),
        ("typos", f"<solution>{TEXTS[0]}</solution>\nI changed {'one word, ' * 40}", TEXTS[0]),
        ("letters", "\\boxed{(B) 12}", "B"),
        ("options", "\\boxed{0.75}", "C"),
    ],
)
def test_honest_replies_are_right(name: str, reply: str, gold: str) -> None:
    assert wins(TASKS[name][0], reply) == [gold]


def test_a_number_too_large_to_be_rounded_is_only_wrong() -> None:
    problem = Problem("v", "?", "1.2", {"precision": 1.0})
    task = MathAnswers("rounded", [problem])
    for answer in ("10^{5000}", "-10^{5000}", "10^{-5000}", "1e400", "\\frac{1}{10^{4999}}"):
        found = task.verify([problem], [f"\\boxed{{{answer}}}"])[0]
        assert (found.correct, found.status) == (False, "ok"), answer
    assert task.verify([problem], ["\\boxed{1.204}"])[0].correct
