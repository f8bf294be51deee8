"""Countdown: the enumerator against brute force, the parser against Python's own grammar, splits, hostile input."""

import ast
import time
from collections.abc import Iterator
from fractions import Fraction
from itertools import combinations, permutations, product

import numpy as np
import pytest

from offleash.eval.errors import ConfigError
from offleash.eval.problem import Problem
from offleash.eval.tasks import load_task
from offleash.eval.tasks.countdown import SPLITS, Countdown, parse
from offleash.train.cli import main


def canonical(text: str) -> str | None:
    """The answer class of a text; None if it is not an expression."""
    expression = parse(text)
    return expression.answer if expression else None


def python_value(text: str) -> Fraction:
    """An evaluator that shares nothing with the task's own: Python's grammar, walked with fractions."""
    return _walk(ast.parse(text, mode="eval").body)


def _walk(node: ast.expr) -> Fraction:
    if isinstance(node, ast.Constant):
        assert isinstance(node.value, int)
        return Fraction(node.value)
    assert isinstance(node, ast.BinOp)
    left, right = _walk(node.left), _walk(node.right)
    if isinstance(node.op, ast.Mult):
        return left * right
    return left + right if isinstance(node.op, ast.Add) else left - right


def fully_parenthesised(numbers: tuple[int, ...]) -> Iterator[str]:
    """Every full binary tree over every order of the numbers, every inner node in parentheses."""
    for order in set(permutations(numbers)):
        yield from trees([str(number) for number in order])


def trees(leaves: list[str]) -> Iterator[str]:
    if len(leaves) == 1:
        yield leaves[0]
        return
    for cut in range(1, len(leaves)):
        for left, right, operator in product(trees(leaves[:cut]), trees(leaves[cut:]), "+-*"):
            yield f"({left}{operator}{right})"


def problem(*numbers: int, target: int) -> Problem:
    return Problem("x", "", "", {"numbers": list(numbers), "target": target})


@pytest.fixture(scope="module")
def probe() -> Countdown:
    return Countdown(split="probe", n=128)


@pytest.mark.parametrize("numbers", [2, 3, 4])
def test_enumeration_equals_brute_force_over_trees_and_orders(numbers: int) -> None:
    task = Countdown(n=40 if numbers < 4 else 3, numbers=numbers)
    for one in task.problems:
        brute = {
            canonical(text)
            for text in fully_parenthesised(tuple(one.meta["numbers"]))
            if python_value(text) == one.meta["target"]
        }
        assert set(task.correct_answers(one)) == brute
        assert list(task.correct_answers(one)) == sorted(brute)


def test_canonical_form_keeps_value_numbers_and_operand_order() -> None:
    for text in fully_parenthesised((2, 3, 7, 25)):
        answer = canonical(text)
        assert answer is not None
        assert python_value(answer) == python_value(text)
        assert [c for c in answer if c not in "()"] == [c for c in text if c not in "()"]
        assert canonical(answer) == answer


def test_canonical_form_has_no_removable_parentheses() -> None:
    """No pair can go without changing the class, and pairs that can go never split a class in two."""
    for text in fully_parenthesised((2, 3, 7, 25)):
        answer = canonical(text)
        assert answer is not None
        for shorter in without_one_pair(answer):
            assert canonical(shorter) != answer


def without_one_pair(text: str) -> Iterator[str]:
    opened: list[int] = []
    for at, character in enumerate(text):
        if character == "(":
            opened.append(at)
        elif character == ")":
            start = opened.pop()
            yield text[:start] + text[start + 1 : at] + text[at + 1 :]


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("a+(b+c)", "a+b+c"),
        ("(a+b)+c", "a+b+c"),
        ("a+(b-c)", "a+b-c"),
        ("(a-b)-c", "a-b-c"),
        ("a*(b*c)", "a*b*c"),
        ("(a*b)+c", "a*b+c"),
        ("a-(b*c)", "a-b*c"),
        ("a-(b+c)", "a-(b+c)"),
        ("a-(b-c)", "a-(b-c)"),
        ("(a+b)*c", "(a+b)*c"),
        ("a*((b-c))", "a*(b-c)"),
        ("((a))+( b +c)\n", "a+b+c"),
        ("c+a*b", "c+a*b"),
    ],
)
def test_parentheses_are_dropped_exactly_when_associativity_allows(text: str, answer: str) -> None:
    numbers = str.maketrans({"a": "3", "b": "14", "c": "25"})
    assert canonical(text.translate(numbers)) == answer.translate(numbers)


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


@pytest.mark.filterwarnings("ignore::SyntaxWarning")
def test_random_strings_are_read_exactly_when_pythons_grammar_reads_them_and_to_the_same_value() -> None:
    rng = np.random.default_rng(0)
    read = 0
    for _ in range(20_000):
        text = "".join(rng.choice(list("1234+-*()"), size=rng.integers(1, 8)))
        expression = parse(text)
        assert (expression is not None) == python_reads(text), text
        if expression is not None:
            read += 1
            assert expression.value == python_value(text)
    assert read > 300


def python_reads(text: str) -> bool:
    try:
        tree = ast.parse(text, mode="eval")
    except SyntaxError:
        return False
    allowed = (ast.Expression, ast.BinOp, ast.Constant, ast.Add, ast.Sub, ast.Mult)
    big = any(isinstance(node, ast.Constant) and node.value >= 10**6 for node in ast.walk(tree))
    return not big and all(isinstance(node, allowed) for node in ast.walk(tree))


def test_deep_but_allowed_nesting_is_read_and_one_more_level_is_not() -> None:
    assert canonical("(" * 20 + "7" + ")" * 20) == "7"
    assert canonical("(" * 21 + "7" + ")" * 21) is None


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
    assert [v.answer for v in verdicts] == [canonical(text) for text in wrong]
    assert {v.status for v in verdicts} == {"ok"}
    assert task.verify([one], ["3*7+25"])[0].correct


def test_a_number_given_twice_must_be_used_twice() -> None:
    task = Countdown(n=1)
    assert task.correct_answers(problem(5, 5, 2, target=20)) == ("(5+5)*2", "2*(5+5)")
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


def test_verify_refuses_lists_of_different_lengths(probe: Countdown) -> None:
    with pytest.raises(ValueError, match="zip"):
        probe.verify(probe.problems[:2], ["1"])


def with_extra_pairs(answer: str, pairs: int) -> set[str]:
    """Every way to put so many pairs of parentheses into an answer, between tokens, that leaves its class alone."""
    found = {answer}
    for _ in range(pairs):
        found = {wider for text in found for wider in with_one_pair(text) if canonical(wider) == answer}
    return found


def with_one_pair(text: str) -> Iterator[str]:
    for start, end in combinations(range(len(text) + 1), 2):
        yield f"{text[:start]}({text[start:end]}){text[end:]}"


@pytest.mark.parametrize("answer", ["3+7+8", "3*7*8", "3-7+8", "3*7+8", "3-(7+8)", "(3+7)*8", "3+7-8"])
def test_spellings_are_all_the_texts_with_at_most_one_redundant_pair_per_part(answer: str) -> None:
    spelled = Countdown(n=1).spellings(answer)
    assert answer in spelled
    assert len(set(spelled)) == len(spelled)
    assert all(canonical(text) == answer for text in spelled)
    needed = answer.count("(")
    for pairs in (1, 2):
        brute = {text for text in with_extra_pairs(answer, pairs) if not doubled(text, answer)}
        assert brute == {text for text in spelled if text.count("(") == needed + pairs}


def doubled(text: str, answer: str) -> bool:
    """Whether some part has more than one pair around it that could go."""
    pairs = set(pairs_of(text))
    for start, end in pairs - {(a + 1, b - 1) for a, b in pairs}:
        shells = next(i for i in range(len(text)) if (start + i, end - i) not in pairs)
        bare = text[:start] + text[start + shells : end + 1 - shells] + text[end + 1 :]
        if shells > (1 if canonical(bare) == answer else 2):
            return True
    return False


def pairs_of(text: str) -> Iterator[tuple[int, int]]:
    opened: list[int] = []
    for at, character in enumerate(text):
        if character == "(":
            opened.append(at)
        elif character == ")":
            yield opened.pop(), at


def test_spellings_of_every_probe_answer_come_back_to_it(probe: Countdown) -> None:
    for one in probe.problems:
        for answer in probe.correct_answers(one):
            assert {canonical(text) for text in probe.spellings(answer)} == {answer}


def test_spellings_count_leaves_groups_and_the_whole() -> None:
    """Three leaves and the whole, each with or without a pair: 16; times the groupings that keep the class."""
    task = Countdown(n=1)
    assert {text: len(task.spellings(text)) for text in ("1+2+3", "1-2+3", "1-2-3", "(1+2)*3", "1-(2+3)")} == {
        "1+2+3": 48,
        "1-2+3": 32,
        "1-2-3": 32,
        "(1+2)*3": 32,
        "1-(2+3)": 32,
    }


def test_spellings_of_something_else_are_refused() -> None:
    with pytest.raises(ConfigError, match="not an expression"):
        Countdown(n=1).spellings("3+")


def key(one: Problem) -> tuple[tuple[int, ...], int]:
    return tuple(sorted(one.meta["numbers"])), one.meta["target"]


def test_splits_are_disjoint_across_seeds_and_hold_no_problem_twice() -> None:
    keys = {
        split: [{key(p) for p in Countdown(split=split, n=300, seed=seed).problems} for seed in (0, 1)]
        for split in SPLITS
    }
    assert all(len(found) == 300 for lists in keys.values() for found in lists)
    for one, other in combinations(SPLITS, 2):
        assert not set.union(*keys[one]) & set.union(*keys[other])


def test_problems_fit_the_limits_and_have_an_answer() -> None:
    task = Countdown(split="validation", n=200, seed=3, numbers=4, max_number=9, max_target=50)
    for one in task.problems:
        assert len(one.meta["numbers"]) == 4
        assert all(1 <= number <= 9 for number in one.meta["numbers"])
        assert 1 <= one.meta["target"] <= 50
        assert task.correct_answers(one)


def test_a_bigger_task_starts_with_the_smaller_one() -> None:
    assert Countdown(n=200, seed=5).problems[:50] == Countdown(n=50, seed=5).problems
    assert Countdown(n=50, seed=5).problems != Countdown(n=50, seed=6).problems


def test_problems_are_the_ones_the_shipped_numbers_were_measured_on(probe: Countdown) -> None:
    """A change here (of the generator, or of numpy's stream) makes every published lab number another experiment."""
    assert [p.id for p in probe.problems[:4]] == PINNED
    assert probe.problems[1].prompt == "11 13 18 = 185:"
    assert probe.problems[1].meta == {"numbers": [11, 13, 18], "target": 185}
    assert len({p.id for p in probe.problems}) == 128


PINNED = ["countdown-11-1-1-10", "countdown-11-13-18-185", "countdown-2-3-10-23", "countdown-11-10-18-17"]


def test_three_number_problems_have_about_five_answers() -> None:
    task = Countdown(split="train", n=2000)
    assert 4.5 < np.mean([len(task.correct_answers(p)) for p in task.problems]) < 5.3


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
