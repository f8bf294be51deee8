"""One's own benchmark: golds score 1 and wrong answers 0 in every format; what cannot be used is told by its row."""

import csv
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from offleash.eval.errors import ConfigError
from offleash.eval.tasks import load_task
from offleash.eval.tasks.loading import Benchmark, hub_rows, hub_split
from offleash.eval.verify.health import bad_golds
from offleash.eval.verify.sandbox import confine

needs_sandbox = pytest.mark.skipif(confine.unavailable() is not None, reason="programs need a sandbox")
MATH = {"question": "problem", "gold": "answer", "verifier": "math"}
SUMS = [{"problem": f"What is {n} + 1?", "answer": str(n + 1), "level": n} for n in range(1, 5)]
OPTIONS = ["red", "green", "blue"]


def written(folder: Path, rows: list[dict[str, Any]], name: str = "bench.jsonl") -> Path:
    path = folder / name
    path.parent.mkdir(exist_ok=True, parents=True)
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows))
    elif path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        with path.open("w", encoding="utf-8-sig", newline="") as file:  # as Excel writes it
            table = csv.DictWriter(file, list(rows[0]))
            table.writeheader()
            table.writerows(rows)
    return path


def judged(task: Any, right: str, wrong: str) -> list[bool]:
    first = task.problems[0]
    return [verdict.correct for verdict in task.verify([first, first], [right, wrong])]


def refused(path: Path, /, *words: str, **arguments: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        load_task("data", **{"path": path, **MATH, **arguments})
    message = str(caught.value)
    assert all(word in message for word in words), message
    assert "\n" not in message
    return message


# Formats and names


@pytest.mark.parametrize("name", ["bench.jsonl", "bench.json", "bench.csv", "bench.parquet"])
def test_every_format_gives_the_same_problems(tmp_path, name):
    task = load_task("data", path=written(tmp_path, SUMS, name), **MATH)
    assert task.name == "bench"
    assert [problem.gold for problem in task.problems] == ["2", "3", "4", "5"]
    same = load_task("data", path=written(tmp_path, SUMS, "other/bench.jsonl"), **MATH)
    assert [problem.id for problem in task.problems] == [problem.id for problem in same.problems]
    assert "What is 1 + 1?" in task.problems[0].prompt[0]["content"]
    assert judged(task, "\\boxed{2.0}", "\\boxed{3}") == [True, False]
    assert bad_golds(task) == []


def test_the_task_is_called_after_the_file_the_folder_or_as_one_says(tmp_path):
    path = written(tmp_path, SUMS, "my set (v2).jsonl")
    assert load_task("data", path=path, **MATH).name == "my-set-v2"
    assert load_task("data", path=path, name="own.v2", **MATH).name == "own.v2"
    written(tmp_path, SUMS[:2], "parts/test-0.jsonl")
    written(tmp_path, SUMS[2:], "parts/test-1.csv")
    written(tmp_path, SUMS, "parts/train.jsonl")
    written(tmp_path, SUMS, "parts/.ipynb_checkpoints/test-0.jsonl")
    task = load_task("data", path=tmp_path / "parts", split="test", **MATH)
    assert (task.name, len(task.problems)) == ("parts", 4)
    refused(path, "'a/b'", name="a/b")
    refused(tmp_path / "parts", "duplicated", "test-0.jsonl:1", "train.jsonl:1")


def test_ids_are_those_of_their_column_or_a_hash_of_the_content(tmp_path):
    path = written(tmp_path, [{**row, "key": f"k{n}", "id": n} for n, row in enumerate(SUMS)])
    assert [p.id for p in load_task("data", path=path, **MATH).problems] == ["0", "1", "2", "3"]
    assert load_task("data", path=path, id="key", **MATH).problems[0].id == "k0"
    hashed = [p.id for p in load_task("data", path=path, id="", **MATH).problems]
    assert hashed[0].startswith("bench/")
    assert len(set(hashed)) == 4


def test_problems_are_chosen_as_those_of_every_benchmark(tmp_path):
    path = written(tmp_path, SUMS)
    assert len(load_task("data", path=path, limit=2, **MATH).problems) == 2
    assert len(load_task("data", path=path, sample=3, seed=1, **MATH).problems) == 3
    refused(path, "limit", "'many'", limit="many")
    refused(path, "limt", "judge_url", limt=2)


def test_an_instruction_follows_the_question_or_does_not(tmp_path):
    path = written(tmp_path, SUMS)
    assert load_task("data", path=path, instruction="", **MATH).problems[0].prompt[0]["content"] == "What is 1 + 1?"
    prompt = load_task("data", path=path, instruction="Only the number.", **MATH).problems[0].prompt[0]["content"]
    assert prompt.endswith("\n\nOnly the number.")


def test_prompts_are_messages_or_plain_text(tmp_path):
    path = written(tmp_path, SUMS)
    assert load_task("data", path=path, instruction="", chat=False, **MATH).problems[0].prompt == "What is 1 + 1?"


def test_domain_and_subject_are_kept_for_reports_and_no_other_column_is_read_as_metadata(tmp_path):
    rows = [{**row, "subject": "sums", "precision": 0, "choices": ["1", "2"]} for row in SUMS]
    meta = load_task("data", path=written(tmp_path, rows), **MATH).problems[0].meta
    assert meta["subject"] == "sums"
    assert not {"precision", "choices", "level"} & set(meta)


def test_a_dataset_of_the_hub_needs_a_split_unless_it_has_only_one(tmp_path):
    written(tmp_path, SUMS, "set/data/train.jsonl")
    source = str(tmp_path / "set")
    made = {
        "name": "set",
        "split": "",
        "size": 0,
        "domain": "",
        "kind": "math",
        "question": "problem",
        "gold": "answer",
    }
    benchmark = Benchmark(source=source, **made)
    assert hub_split(benchmark) == "train"
    assert [row["answer"] for row in hub_rows(benchmark, "train")] == ["2", "3", "4", "5"]
    written(tmp_path, SUMS, "two/data/train.jsonl")
    written(tmp_path, SUMS, "two/data/test.jsonl")
    with pytest.raises(ConfigError, match=r"train, test|test, train"):
        hub_split(Benchmark(source=str(tmp_path / "two"), **made))


# Verifiers


def test_exact_answers_differ_in_case_space_and_a_period_only(tmp_path):
    path = written(tmp_path, [{"q": "Capital?", "a": "New York"}, {"q": "Half?", "a": ".5"}, {"q": "No?", "a": False}])
    task = load_task("data", path=path, question="q", gold="a", verifier="exact")
    city, half, no = task.problems
    for right in ("\\boxed{\\text{new  York}}", "Answer: New York.", "<answer>'New York'</answer>", "NEW YORK"):
        assert task.verify([city], [right])[0].correct, right
    for wrong in ("York", "It is New York", ""):
        assert not task.verify([city], [wrong])[0].correct, wrong
    assert [task.verify([half], [text])[0].correct for text in (".5", "5", "0.5")] == [True, False, False]
    assert task.verify([no], ["false"])[0].correct
    assert bad_golds(task) == []


@pytest.mark.parametrize(
    ("gold", "choices", "columns"),
    [
        ("B", OPTIONS, "options"),
        ("(b)", OPTIONS, "options"),
        ("green", OPTIONS, "options"),
        ("B", json.dumps(OPTIONS), "options"),
        ("2", {"text": OPTIONS, "label": ["1", "2", "3"]}, "options"),
        ("Z", {"Y": "red", "Z": "green"}, "options"),
        ("green", None, ["one", "two"]),
    ],
)
def test_options_are_shown_and_the_gold_is_a_letter_however_it_is_written(tmp_path, gold, choices, columns):
    row = {"q": "Grass is", "a": gold, "options": choices, "one": "red", "two": "green"}
    path = written(tmp_path, [row])
    task = load_task("data", path=path, question="q", gold="a", verifier="choice", choices=columns)
    assert task.problems[0].gold == "B"
    assert "Grass is\n(A) red\n(B) green" in task.problems[0].prompt[0]["content"]
    assert judged(task, "\\boxed{green}", "\\boxed{A}") == [True, False]
    assert judged(task, "\\boxed{(B)}", "\\boxed{red}") == [True, False]


def test_golds_that_are_positions_count_from_0_and_must_show_it(tmp_path):
    arguments = {"question": "q", "gold": "a", "verifier": "choice", "choices": "o"}
    rows = [{"q": f"Which? {n}", "a": n, "o": OPTIONS} for n in (0, 2)]
    task = load_task("data", path=written(tmp_path, rows), **arguments)
    assert [problem.gold for problem in task.problems] == ["A", "C"]
    refused(written(tmp_path, rows[1:]), "from 0 or from 1", **arguments)
    mixed = [*rows, {"q": "Which?", "a": "blue", "o": OPTIONS}]
    refused(written(tmp_path, mixed), "some are positions", **arguments)
    confusing = [{"q": "Which?", "a": "B", "o": ["B", "A"]}]
    refused(written(tmp_path, confusing), "label of one option and the text of another", **arguments)


def test_without_a_column_of_options_golds_are_letters(tmp_path):
    arguments = {"question": "q", "gold": "a", "verifier": "choice"}
    rows = [{"q": "Grass is (A) red (B) green", "a": "B"}]
    task = load_task("data", path=written(tmp_path, rows), **arguments)
    assert judged(task, "\\boxed{B}", "\\boxed{A}") == [True, False]
    refused(written(tmp_path, [*rows, {"q": "Which?", "a": "green"}]), "'green'", "row 2", **arguments)


def test_a_changed_test_of_a_program_is_another_version(tmp_path):
    row = {"q": "Add two numbers.", "t": ["assert add(1, 2) == 3", "assert add(0, 0) == 0"]}
    arguments = {"question": "q", "verifier": "code", "tests": "t"}
    task = load_task("data", path=written(tmp_path, [row]), **arguments)
    assert "`add`" in task.problems[0].prompt[0]["content"]
    row["t"][1] = "assert add(0, 1) == 1"
    assert load_task("data", path=written(tmp_path, [row]), **arguments).version != task.version


@needs_sandbox
def test_programs_are_judged_by_asserts_test_code_or_cases(tmp_path):
    prompt = 'def add(a, b):\n    """The sum."""'
    rows = [
        {"id": "asserts", "q": "Add.", "t": ["assert add(1, 2) == 3"], "e": "add", "a": "def add(a, b): return a + b"},
        {
            "id": "body",
            "q": prompt,
            "t": "def check(candidate):\n    assert candidate(1, 2) == 3\n",
            "e": "add",
            "a": "c = a + b\n    return c",
        },
    ]
    task = load_task("data", path=written(tmp_path, rows), question="q", gold="a", verifier="code", tests=["t", "e"])
    assert bad_golds(task) == []
    assert judged(task, "```python\ndef add(a, b):\n    return b + a\n```", "```python\ndef add(a, b): ...\n```") == [
        True,
        False,
    ]
    cases = [{"q": "Double it.", "t": {"inputs": ["2\n"], "outputs": ["4\n"]}}]
    stdin = load_task("data", path=written(tmp_path, cases, "cases.jsonl"), question="q", verifier="code", tests="t")
    assert "standard input" in stdin.problems[0].prompt[0]["content"]
    good = "```python\nprint(2 * int(input()))\n```"
    assert judged(stdin, good, good.replace("2 *", "3 *")) == [True, False]
    for opened in (task, stdin):
        opened.close()


# What cannot be used


def test_a_missing_column_is_named_with_those_that_are_there(tmp_path):
    path = written(tmp_path, SUMS)
    refused(path, "'question'", "problem, answer, level", question="question")
    refused(path, "'gold', 'key'", "problem, answer, level", gold="gold", id="key")


@pytest.mark.parametrize("empty", [None, "", "  ", float("nan")])
def test_empty_questions_and_golds_are_told_by_row(tmp_path, empty):
    rows = [*SUMS[:2], {**SUMS[2], "answer": empty}, {**SUMS[3], "problem": empty}]
    message = refused(written(tmp_path, rows), "2 of 4 rows", "no gold in 'answer' (row 3)")
    assert "no question in 'problem' (row 4)" in message


def test_nan_of_a_parquet_file_and_empty_cells_of_a_csv_are_empty(tmp_path):
    table = pa.table({"problem": ["a?", "b?"], "answer": [1.0, float("nan")]})
    pq.write_table(table, tmp_path / "bench.parquet")
    refused(tmp_path / "bench.parquet", "no gold in 'answer' (row 2)")
    (tmp_path / "bench.csv").write_text("problem,answer\na?,1\nb?,\nc?\n")
    refused(tmp_path / "bench.csv", "no gold in 'answer' (rows 2, 3)")


def test_many_bad_rows_are_counted_and_the_first_are_listed(tmp_path):
    rows = [{"problem": f"{n}?", "answer": ""} for n in range(40)]
    refused(written(tmp_path, rows), "40 of 40 rows", "rows 1, 2, 3, 4, 5 and 35 more")


def test_duplicates_are_told_by_row(tmp_path):
    rows = [{**row, "id": n % 3} for n, row in enumerate(SUMS)]
    refused(written(tmp_path, rows), "the id '0' is duplicated (rows 1, 4)")
    again = [*SUMS, {**SUMS[1], "answer": "77"}]
    refused(written(tmp_path, again), "'What is 2 + 1?' is duplicated", "rows 2, 5")
    told_apart = [{**row, "id": n} for n, row in enumerate(again)]
    assert len(load_task("data", path=written(tmp_path, told_apart), **MATH).problems) == 5


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"problem": ["a"], "answer": "1"}, "not text but a list"),
        ({"problem": 3, "answer": "1"}, "not text but a int"),
        ({"problem": "a", "answer": ["1", "2"]}, "neither text nor a number but a list"),
        ({"problem": "a", "answer": float("inf")}, "infinite"),
        ({"problem": "a\ud800", "answer": "1"}, "lone surrogate"),
        ({"problem": "a", "answer": "1", "id": 1.5}, "neither text nor an integer"),
    ],
)
def test_values_of_a_wrong_type_are_told_by_row(tmp_path, row, words):
    first = {"problem": "b", "answer": "2", **({"id": 0} if "id" in row else {})}
    refused(written(tmp_path, [first, row]), words, "row 2")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (OPTIONS, "is not one of the 3 options"),
        (["red"], "1 options"),
        (["red", ""], "is empty"),
        (["red", "red"], "is duplicated"),
        ("red, green", "not a list of options"),
        (list("abcdefghijk"), "11 options"),
    ],
)
def test_golds_that_are_no_option_and_options_that_are_none_are_told_by_row(tmp_path, options, words):
    rows = [{"q": "1?", "a": "red", "o": OPTIONS}, {"q": "2?", "a": "violet", "o": options}]
    refused(written(tmp_path, rows), words, "row 2", question="q", gold="a", verifier="choice", choices="o")


@pytest.mark.parametrize(
    ("tests", "words"),
    [("assert", "not Python"), ("check(f)", "entry point"), ({"inputs": ["1"], "outputs": []}, "cases"), ([], "cases")],
)
def test_tests_that_cannot_be_read_are_told_by_row(tmp_path, tests, words):
    rows = [{"q": "1?", "t": "assert f(1) == 1"}, {"q": "2?", "t": tests}]
    if words == "entry point":
        rows[1]["t"] = "assert f(g(1)) == 1"
    refused(written(tmp_path, rows), words, "row 2", question="q", gold="", verifier="code", tests="t")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("empty.jsonl", b"", "empty"),
        ("empty.json", b"[]", "empty"),
        ("header.csv", b"problem,answer\n", "empty"),
        ("broken.jsonl", b'{"problem": "a", "answer": "1"}\n{"problem":\n', "line 2"),
        ("list.jsonl", b"[1, 2]\n", "line 1"),
        ("object.json", b'{"data": []}', "list"),
        ("deep.jsonl", b"[" * 100_000 + b"\n", "line 1"),
        ("wide.csv", b"problem,answer\na,1,2\n", "line 2"),
        ("quote.csv", b'problem,answer\n"a,1\n', "quote.csv"),
        ("twice.csv", b"problem,problem\na,1\n", "'problem' is duplicated"),
        ("latin.csv", "problem,answer\n\xe4,1\n".encode("latin-1"), "latin.csv"),
        ("not.parquet", b"not parquet at all", "not.parquet"),
        ("bench.tsv", b"problem\tanswer\n", ".jsonl"),
    ],
)
def test_files_that_cannot_be_read_are_one_line(tmp_path, name, content, words):
    (tmp_path / name).write_bytes(content)
    refused(tmp_path / name, words, name)


def test_a_file_that_is_not_there_is_not_looked_for_on_the_hub(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for missing in ("bench.jsonl", "./bench.csv", str(tmp_path / "none"), "a/b/c"):
        refused(Path(missing), "No such file" if "." in missing else "must end in")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"verifier": "mth"}, "did you mean math"),
        ({"gold": ""}, "needs gold"),
        ({"verifier": "code"}, "needs tests"),
        ({"verifier": "judge"}, "judge_url"),
        ({"choices": "c"}, "verifier choice"),
        ({"verifier": "exact", "tolerance": 0.1}, "verifier math"),
        ({"question": 3}, "question must be text"),
        ({"path": ""}, "path"),
        ({"path": 5}, "path"),
        ({"choices": 5}, "choices"),
        ({"tolerance": "much"}, "tolerance"),
        ({"chat": "no"}, "'no'"),
        ({"thinking": "no"}, "thinking must be true or false"),
        ({"split": "test"}, "one file"),
        ({"config": "main"}, "config"),
        ({"golds": "maybe"}, "golds"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(tmp_path, arguments, words):
    refused(written(tmp_path, SUMS), words, **arguments)


def test_golds_that_the_verifier_cannot_read_are_refused_before_anything_is_sampled(tmp_path):
    path = written(tmp_path, [*SUMS, {"problem": "?", "answer": "\\frac{1}{"}])
    refused(path, "1 of 5 gold answers")
    with pytest.warns(RuntimeWarning, match="left out"):
        assert len(load_task("data", path=path, golds="drop", **MATH).problems) == 4
