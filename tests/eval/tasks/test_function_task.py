"""A function of one's own as the verifier: what it says counts, and what it may not say is told before sampling."""

import json
import sys
from pathlib import Path

import pytest

from offleash.eval.errors import ConfigError
from offleash.eval.tasks import load_task
from offleash.eval.verify.health import bad_golds

ROWS = [{"id": f"p{n}", "problem": f"Reach {n}.", "answer": n, "parts": [n - 1, 1]} for n in (5, 7)]
numbers = iter(range(100))


@pytest.fixture
def task_of(tmp_path, monkeypatch):
    """A task verified by the function `judge` of a module with this code, in the working directory."""
    monkeypatch.chdir(tmp_path)
    Path("bench.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))

    def make(code, function="judge", **arguments):
        module = f"own_verifier_{next(numbers)}"
        Path(f"{module}.py").write_text(code)
        given = {"path": "bench.jsonl", "question": "problem", "gold": "answer", **arguments}
        try:
            return load_task("data", verifier=f"{module}:{function}", **given)
        finally:
            sys.modules.pop(module, None)

    return make


EQUAL = "def judge(completion, gold, row):\n    return completion.strip() == gold\n"


def test_true_and_false_become_verdicts_with_an_answer_from_the_usual_cascade(task_of):
    task = task_of("def judge(completion, gold, row):\n    return sum(row['parts']) == 5 and gold in completion\n")
    five, seven = task.problems
    replies = ["5", "so \\boxed{5}", "so \\boxed{4}", "long " * 200, "long " * 200]
    verdicts = task.verify([five] * 5, replies, [False, False, False, False, True])
    assert [(v.correct, v.answer, v.status) for v in verdicts] == [
        (True, "5", "ok"),
        (True, "5", "ok"),
        (False, "4", "ok"),
        (False, None, "no_answer"),
        (False, None, "truncated"),
    ]
    assert verdicts[1].extracted_by == "boxed"
    (wrong,) = task.verify([seven], ["\\boxed{7}"])
    assert not wrong.correct
    assert wrong.answer != "7"  # the gold's class is for what was accepted


def test_a_verdict_is_taken_as_it_is(task_of):
    task = task_of(
        "from offleash.eval import Verdict\n"
        "def judge(completion, gold, row):\n"
        "    return Verdict(answer='mine', correct=True, status='ok', spelling=completion)\n"
    )
    (verdict,) = task.verify(task.problems[:1], ["x"])
    assert (verdict.answer, verdict.correct, verdict.spelling) == ("mine", True, "x")


def test_an_exception_is_a_failure_of_the_verifier_of_that_sample_alone(task_of):
    task = task_of("def judge(completion, gold, row):\n    return completion != 'bad' or 1 / 0\n")
    good, bad = task.verify([task.problems[0]] * 2, ["fine", "bad"])
    assert (good.status, bad.status, bad.correct) == ("ok", "error", False)
    assert "ZeroDivisionError" in bad.message


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("return 0.5", "got 0.5"),
        ("return None", "got None"),
        ("return 'yes'", "got 'yes'"),
        ("return int(completion) == int(gold)", "ValueError"),
        ("return row['missing']", "KeyError"),
    ],
)
def test_a_function_that_cannot_judge_is_told_by_a_call_before_anything_is_sampled(task_of, body, words):
    with pytest.raises(ConfigError, match="'p5'") as caught:
        task_of(f"def judge(completion, gold, row):\n    {body}\n")
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("def judge(completion, gold): return True", r"judge\(completion, gold, row\)"),
        ("def judge(*completion): return True", r"judge\(completion, gold, row\)"),
        ("async def judge(completion, gold, row): return True", "asynchronous"),
        ("class judge: ...", "must be a function"),
        ("def other(completion, gold, row): return True", "has no 'judge'"),
        ("import not_installed_anywhere", "not_installed_anywhere"),
        ("x = 1\ny = x.z\n", r"AttributeError.*line 2"),
        ("def judge(completion, gold, row)\n", "SyntaxError"),
    ],
)
def test_what_is_not_such_a_function_is_refused_in_one_line(task_of, code, words):
    with pytest.raises(ConfigError, match=words):
        task_of(code)


@pytest.mark.parametrize("name", ["os:system", "subprocess:run", "builtins:exec", "shutil:rmtree"])
def test_functions_of_libraries_are_never_called_as_verifiers(task_of, name, tmp_path):
    with pytest.raises(ConfigError, match=f"verifier '{name}'"):
        load_task("data", path="bench.jsonl", question="problem", gold="answer", verifier=name)


def test_the_version_changes_with_the_function_and_with_the_rows_it_sees(task_of):
    first = task_of(EQUAL).version
    assert task_of(EQUAL).version == first
    assert task_of(EQUAL, limit=1).version == first
    assert task_of(EQUAL.replace("==", "!=")).version != first
    Path("bench.jsonl").write_text("".join(json.dumps({**row, "parts": []}) + "\n" for row in ROWS))
    task = load_task("data", path="bench.jsonl", question="problem", gold="answer", verifier=_saved("again", EQUAL))
    assert task.version != first


def _saved(module: str, code: str) -> str:
    Path(f"{module}.py").write_text(code)
    return f"{module}:judge"


def test_golds_are_checked_in_the_forms_that_a_function_may_ask_for(task_of):
    assert bad_golds(task_of("def judge(completion, gold, row):\n    return completion == f'#### {gold}'\n")) == []
    faults = bad_golds(task_of("def judge(completion, gold, row):\n    return '7' in completion\n"))
    assert [problem_id for problem_id, _ in faults] == ["p5"]
