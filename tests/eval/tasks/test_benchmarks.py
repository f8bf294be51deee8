"""Every benchmark on a few rows in its published schema: the gold answer scores 1, a wrong one 0."""

import base64
import contextlib
import json
import pickle
import threading
import warnings
import zlib
from collections.abc import Iterator
from fractions import Fraction
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from offleash.eval.errors import ConfigError
from offleash.eval.problem import Problem
from offleash.eval.tasks import TASKS, code_tasks, load_task
from offleash.eval.tasks.benchmarks import BENCHMARKS
from offleash.eval.tasks.code_tasks import decode_cases, program_in
from offleash.eval.tasks.math_tasks import decimal
from offleash.eval.tasks.text_tasks import JudgedAnswers
from offleash.eval.verify.health import bad_golds
from offleash.eval.verify.judge import Judge
from offleash.eval.verify.sandbox import confine

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
needs_sandbox = pytest.mark.skipif(confine.unavailable() is not None, reason="programs need a sandbox")


def livebench(question_id: str, task: str, truth: str, out: str = "2024-06-24", removed: str = "") -> dict[str, Any]:
    return {
        "question_id": question_id,
        "category": "reasoning",
        "ground_truth": truth,
        "turns": [f"A question of {task}."],
        "task": task,
        "livebench_release_date": f"{out} 00:00:00",
        "livebench_removal_date": removed,
    }


def packed(cases: list[dict[str, str]]) -> str:
    """As LiveCodeBench stores private cases."""
    return base64.b64encode(zlib.compress(pickle.dumps(json.dumps(cases)))).decode()


SUM_CASES = [{"input": "1 2\n", "output": "3\n", "testtype": "stdin"}]
ADD_CASES = [{"input": "[1, 2]\n3", "output": "[4, 5]", "testtype": "functional"}]
SUM_PROGRAM = "```python\na, b = map(int, input().split())\nprint(a + b)\n```"
ADD_PROGRAM = (
    "```python\nclass Solution:\n    def add(self, numbers: List[int], by: int) -> List[int]:\n"
    "        return tuple(n + by for n in numbers)\n```"
)


def contest(question_id: str, date: str, function: str = "") -> dict[str, Any]:
    cases = ADD_CASES if function else SUM_CASES
    more = [{"input": "[]\n1", "output": "[]"}] if function else [{"input": "-5 7", "output": "2"}]
    return {
        "question_title": question_id,
        "question_content": "Add.",
        "platform": "leetcode" if function else "atcoder",
        "question_id": question_id,
        "contest_id": "c",
        "contest_date": f"{date}T00:00:00",
        "starter_code": "class Solution:\n    def add(self, numbers, by):\n        " if function else "",
        "difficulty": "easy",
        "public_test_cases": json.dumps(cases),
        "private_test_cases": packed([{**case, "testtype": cases[0]["testtype"]} for case in more]),
        "metadata": json.dumps({"func_name": function} if function else {}),
    }


def livebench_code(question_id: str, task: str, partial: str) -> dict[str, Any]:
    row = contest(question_id, "2024-01-01")
    return {
        **livebench(question_id, task, ""),
        "question_title": "Add",
        "public_test_cases": row["public_test_cases"],
        "private_test_cases": row["private_test_cases"],
        "original_json": {"question_content": "Add.", "metadata": row["metadata"]},
        "partial_solution": partial,
    }


MATHVISTA = {"image": "images/1.jpg", "decoded_image": {"bytes": PNG, "path": None}, "metadata": {"split": "testmini"}}
MATHVISION = {"image": "images/1.jpg", "decoded_image": {"bytes": PNG, "path": None}, "solution": None, "level": 2}

# name: rows, and for each problem that belongs a reply that is right and one that is wrong
CASES: dict[str, tuple[list[dict[str, Any]], list[tuple[str, str]]]] = {
    "math500": (
        [
            {
                "problem": "What is 1/2 + 1/3?",
                "solution": "...",
                "answer": "\\frac{5}{6}",
                "subject": "Prealgebra",
                "level": 1,
                "unique_id": "test/prealgebra/1.json",
            }
        ],
        [("So \\boxed{\\dfrac56}.", "So \\boxed{\\frac{6}{5}}.")],
    ),
    "minerva": (
        [{"question": "How luminous?", "answer": "4e33"}, {"question": "Which?", "answer": "\\frac{1}{2} m v^2"}],
        [("\\boxed{4 \\times 10^{33}}", "\\boxed{4e32}"), ("\\boxed{\\frac{mv^2}{2}}", "\\boxed{m v^2}")],
    ),
    "olympiadbench": (
        [
            {
                "id": 1606,
                "question": "Find all $x$.",
                "context": "Let $x$ be real.",
                "solution": ["..."],
                "final_answer": ["$-1, 2$"],
                "is_multiple_answer": True,
                "unit": None,
                "answer_type": "Numerical",
                "subfield": "Algebra",
            }
        ],
        [("\\boxed{2, -1}", "\\boxed{2}")],
    ),
    "aime2024": (
        [{"id": 60, "problem": "?", "solution": "...", "answer": "073", "url": "u", "year": "2024"}],
        [("\\boxed{73}", "\\boxed{730}")],
    ),
    "aime2025": ([{"problem": "?", "answer": "588", "id": "0"}], [("\\boxed{588}", "\\boxed{589}")]),
    "amc2023": ([{"id": 0, "question": "?", "answer": 27.0, "url": "u"}], [("\\boxed{27}", "\\boxed{2.7}")]),
    "gsm8k": (
        [{"question": "How many?", "answer": "He has 2 * 500 = <<2*500=1000>>1000.\n#### 1,000"}],
        [("That makes 1000 apples.", "That makes 100 apples.")],
    ),
    "mathvista": (
        [
            {
                **MATHVISTA, "pid": "1", "question": "Which?", "choices": ["3/11", "8/11", "6/11"], "unit": None,
                "precision": None, "answer": "6/11", "question_type": "multi_choice", "answer_type": "text",
                "query": "Hint: ...\nQuestion: Which?\nChoices:\n(A) 3/11\n(B) 8/11\n(C) 6/11",
            },
            {
                **MATHVISTA, "pid": "2", "question": "How far?", "choices": None, "unit": None, "precision": 1.0,
                "answer": "1.2", "question_type": "free_form", "answer_type": "float", "query": "Question: How far?",
            },
        ],
        [("\\boxed{\\frac{6}{11}}", "\\boxed{B}"), ("\\boxed{1.204}", "\\boxed{1.26}")],
    ),
    "mathvision": (
        [
            {
                **MATHVISION, "id": "4", "question": "Which of these? <image1>",
                "options": ["10", "12", "14", "16", "18"], "answer": "B", "subject": "counting",
            },
            {**MATHVISION, "id": "5", "question": "How many?", "options": [], "answer": "7", "subject": "counting"},
        ],
        [("\\boxed{(B) 12}", "\\boxed{14}"), ("\\boxed{7}", "\\boxed{8}")],
    ),
    "simpleqa": (
        [{"metadata": "{'topic': 'Art'}", "problem": "Who painted it?", "answer": "Vilhelm Hammershøi"}],
        [("\\boxed{Hammershøi}", "\\boxed{Picasso}")],
    ),
    "livebench-reasoning": (
        [
            livebench("w", "web_of_lies_v2", "yes, no, yes"),
            livebench("s", "spatial", "4", out="2024-07-26"),
            livebench("t", "spatial", "tetrahedra", out="2024-07-26"),
            livebench("zebra", "zebra_puzzle", "1"),
            livebench("old", "spatial", "1", removed="2024-11-25"),
            livebench("new", "web_of_lies_v2", "no, no, no", out="2025-04-02"),
        ],
        [
            ("The answer: **yes**, **no**, **yes**.", "**yes, no, no**"),
            ("There are **four**.", "There are **five**."),
            ("It makes **two tetrahedra**", "It makes **two cubes**"),
        ],
    ),
    "livebench-language": (
        [livebench("l", "typos", "We show that it holds.", out="2024-07-26"), livebench("c", "connections", "a, b")],
        [("Here it is:\nWe show that it holds.", "We shwo that it holds.")],
    ),
    "livebench-coding": (
        [
            livebench_code("g", "LCB_generation", ""),
            livebench_code("p", "coding_completion", "a, b = map(int, input().split())"),
        ],
        [(SUM_PROGRAM, "```python\nprint(3)\n```"), ("```python\nprint(a + b)\n```", "```python\nprint(a)\n```")],
    ),
    "livecodebench-v5": (
        [contest("early", "2024-07-30"), contest("abc", "2024-08-01"), contest("lc", "2025-01-31", "add")],
        [(SUM_PROGRAM, "```python\nprint(3)\n```"), (ADD_PROGRAM, ADD_PROGRAM.replace("n + by", "n - by"))],
    ),
    "livecodebench-v6": (
        [contest("abc", "2025-01-31"), contest("arc", "2025-02-01")],
        [(f"First try:\n```python\nx\n```\nBetter:\n{SUM_PROGRAM}", f"{SUM_PROGRAM}\nno:\n```python\nprint(0)\n```")],
    ),
    "scibench": (
        [
            {
                "problem_text": "What work?", "answer_latex": " -47", "answer_number": " -47", "unit": " kJ",
                "source": "fund", "problemid": " 7.05", "comment": " ", "solution": None,
            },
            {
                "problem_text": "What energy?", "answer_latex": "2.0", "answer_number": "2.0", "unit": " $10^8$ J",
                "source": "fund", "problemid": " 7.01", "comment": " ", "solution": None,
            },
        ],
        [("\\boxed{-46.1}", "\\boxed{47}"), ("\\boxed{2.05 \\times 10^8}", "\\boxed{2.0}")],
    ),
    "humaneval": (
        [
            {
                "task_id": "HumanEval/0",
                "prompt": 'from typing import List\n\ndef top(xs: List[int]) -> int:\n    """ The largest. """\n',
                "canonical_solution": "    return max(xs)\n",
                "test": "def check(candidate):\n    assert candidate([1, 3, 2]) == 3\n",
                "entry_point": "top",
            }
        ],
        [("```python\ndef top(xs: List[int]):\n    return sorted(xs)[-1]\n```", "```python\n    return xs[0]\n```")],
    ),
}  # fmt: skip


class Grader(BaseHTTPRequestHandler):
    """Says A to an answer that names the painter."""

    def do_POST(self) -> None:
        asked = self.rfile.read(int(self.headers["Content-Length"])).decode()
        letter = "A" if "\\nHammersh" in asked else "B"
        body = json.dumps({"choices": [{"message": {"content": letter}}]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    server = HTTPServer(("127.0.0.1", 0), Grader)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield {
        "judge_url": f"http://127.0.0.1:{server.server_port}/v1",
        "judge_model": "grader",
        "judge_cache": str(tmp_path_factory.mktemp("judge") / "judge.jsonl"),
    }
    server.shutdown()
    server.server_close()


def parquet(folder: Path, rows: list[dict[str, Any]]) -> Path:
    path = folder / "rows.parquet"
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def content(problem: Problem) -> Any:
    """Of the one message of a prompt."""
    message = problem.prompt[0]
    assert isinstance(message, dict)
    assert message["role"] == "user"
    return message["content"]


def jsonl(folder: Path, rows: list[dict[str, Any]], name: str = "rows.jsonl") -> Path:
    path = folder / name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_every_benchmark_has_rows_here() -> None:
    assert set(CASES) == set(BENCHMARKS)
    assert BENCHMARKS.keys() <= TASKS.keys()


@pytest.mark.parametrize("name", CASES)
def test_gold_scores_one_and_a_wrong_answer_zero(name: str, tmp_path: Path, judge: dict[str, str]) -> None:
    if BENCHMARKS[name].kind == "code" and confine.unavailable() is not None:
        pytest.skip("programs need a sandbox")
    rows, replies = CASES[name]
    extra = judge if BENCHMARKS[name].kind == "judge" else {}
    task = load_task(name, path=parquet(tmp_path, rows), golds="refuse", **extra)
    problems = list(task.problems)
    assert len(problems) == len(replies)
    assert bad_golds(task) == []
    right = task.verify(problems, [good for good, _ in replies])
    wrong = task.verify(problems, [bad for _, bad in replies])
    assert [(v.correct, v.status) for v in right] == [(True, "ok")] * len(problems)
    assert [(v.correct, v.status) for v in wrong] == [(False, "ok")] * len(problems)
    assert all(r.answer != w.answer for r, w in zip(right, wrong, strict=True))
    silent = task.verify(problems, ["<think>hm"] * len(problems), [True] * len(problems))
    assert [(v.answer, v.correct, v.status) for v in silent] == [(None, False, "truncated")] * len(problems)
    for listed, verdict in zip(map(task.correct_answers, problems), right, strict=True):
        assert listed is None or verdict.answer in listed
    if hasattr(task, "close"):
        task.close()


@pytest.mark.parametrize("name", CASES)
def test_a_missing_column_is_one_clear_error(name: str, tmp_path: Path) -> None:
    for column in BENCHMARKS[name].needed:
        rows = [{key: value for key, value in row.items() if key != column} for row in CASES[name][0]]
        if column == BENCHMARKS[name].id and {"problem", "answer"} <= rows[0].keys():
            continue  # the plain columns, whose id is not needed
        with pytest.raises(ConfigError, match=f"task '{name}': row 1 .*'{column}'"):
            load_task(name, path=parquet(tmp_path, rows), golds="unchecked")


@pytest.mark.parametrize("name", CASES)
def test_ids_do_not_depend_on_order_or_file(name: str, tmp_path: Path) -> None:
    rows, replies = CASES[name]
    ids = [p.id for p in load_task(name, path=parquet(tmp_path, rows), golds="unchecked").problems]
    again = [p.id for p in load_task(name, path=parquet(tmp_path, rows[::-1]), golds="unchecked").problems]
    assert sorted(ids) == sorted(again)
    assert len(set(ids)) == len(replies)
    assert all(one.startswith(f"{name}/") for one in ids)
    meta = load_task(name, path=parquet(tmp_path, rows), golds="unchecked").problems[0].meta
    assert meta["domain"] in ("math", "non-math")
    json.dumps(meta)


def test_known_ids_are_kept_and_unknown_ones_hashed(tmp_path: Path) -> None:
    assert load_task("math500", path=parquet(tmp_path, CASES["math500"][0])).problems[0].id == (
        "math500/test/prealgebra/1.json"
    )
    row = CASES["gsm8k"][0][0]
    twice = [p.id for p in load_task("gsm8k", path=jsonl(tmp_path, [row, row])).problems]
    assert twice[1] == f"{twice[0]}-2"
    assert twice[0].startswith("gsm8k/")
    assert len(twice[0]) == len("gsm8k/") + 12


def test_limit_ids_and_split_choose_problems(tmp_path: Path) -> None:
    rows = [{"id": i, "problem": f"{i}?", "answer": str(i)} for i in range(6)]
    (tmp_path / "data").mkdir()
    jsonl(tmp_path / "data", rows[:4], "test-00000.jsonl")
    jsonl(tmp_path / "data", rows[4:], "train-00000.jsonl")
    assert [p.gold for p in load_task("aime2025", path=tmp_path, split="train").problems] == ["4", "5"]
    assert [p.gold for p in load_task("aime2025", path=tmp_path, split="test", limit=2).problems] == ["0", "1"]
    path = jsonl(tmp_path, rows)
    assert [p.gold for p in load_task("aime2025", path=path, ids="aime2025/3,aime2025/1").problems] == ["1", "3"]
    assert [p.gold for p in load_task("aime2025", path=path, ids=["aime2025/5"]).problems] == ["5"]
    with pytest.raises(ConfigError, match=r"aime2025/9.*'aime2025/0'"):
        load_task("aime2025", path=path, ids=["aime2025/9"])
    with pytest.raises(ConfigError, match="limit"):
        load_task("aime2025", path=path, limit=0)
    with pytest.raises(ConfigError, match="split"):
        load_task("aime2025", path=path, split="test")
    with pytest.raises(ConfigError, match=r"dev\*"):
        load_task("aime2025", path=tmp_path / "data", split="dev")


def test_the_hub_is_asked_for_the_right_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    asked: list[tuple[Any, ...]] = []

    def load_dataset(*where: Any, **how: Any) -> datasets.Dataset:
        asked.append((*where, how))
        name = next(n for n, b in BENCHMARKS.items() if b.source in json.dumps([where, how]))
        data = datasets.Dataset.from_list(CASES[name][0])
        return data.cast_column("decoded_image", datasets.Image()) if name == "mathvista" else data

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    assert len(load_task("gsm8k", split="train").problems) == 1
    assert asked.pop() == ("openai/gsm8k", "main", {"split": "train"})
    seen = load_task("mathvista").problems[0]
    assert content(seen)[0]["image_url"]["url"].startswith("data:image/png;base64,iVBOR")
    assert asked.pop() == ("AI4Math/MathVista", None, {"split": "testmini"})
    assert len(load_task("livecodebench-v5").problems) == 2
    files = [f"hf://datasets/livecodebench/code_generation_lite/test{n}.jsonl" for n in (3, 4, 5, 6)]
    assert asked.pop() == ("json", {"data_files": files, "split": "train"})


def test_simpleqa_is_a_seeded_sample(tmp_path: Path) -> None:
    rows = [{"metadata": "", "problem": f"Who is {i}?", "answer": f"N{i}"} for i in range(600)]
    path = jsonl(tmp_path, rows)
    drawn = [p.id for p in load_task("simpleqa", path=path).problems]
    assert len(drawn) == 433
    assert [p.id for p in load_task("simpleqa", path=jsonl(tmp_path, rows[::-1])).problems] == drawn[::-1]
    assert [p.id for p in load_task("simpleqa", path=path, seed=1).problems] != drawn
    assert len(load_task("simpleqa", path=path, sample=0).problems) == 600


def test_judged_answers_need_a_judge_only_where_they_differ_from_the_gold(tmp_path: Path) -> None:
    task = load_task("simpleqa", path=jsonl(tmp_path, CASES["simpleqa"][0]))
    assert task.verify(task.problems, ["\\boxed{vilhelm hammershøi.}"])[0].correct
    with pytest.raises(ConfigError, match="judge_url"):
        task.verify(task.problems, ["\\boxed{Hammershøi}"])
    with pytest.raises(ConfigError, match="judge_model"):
        load_task("simpleqa", path=jsonl(tmp_path, CASES["simpleqa"][0]), judge_url="http://127.0.0.1:9/v1")


def test_a_judge_out_of_reach_is_an_error_and_not_wrong(tmp_path: Path) -> None:
    problems = load_task("simpleqa", path=jsonl(tmp_path, CASES["simpleqa"][0])).problems
    nobody = Judge("http://127.0.0.1:9/v1", "m", tmp_path / "judge.jsonl", attempts=1)
    verdict = JudgedAnswers("simpleqa", problems, nobody).verify(problems, ["\\boxed{Picasso}"])[0]
    assert (verdict.status, verdict.correct) == ("error", False)


def test_prompts_are_chat_messages_with_instruction_and_image(tmp_path: Path) -> None:
    math = load_task("math500", path=parquet(tmp_path, CASES["math500"][0])).problems[0]
    assert content(math).startswith("What is 1/2 + 1/3?\n\n")
    assert "\\boxed{}" in content(math)
    seen = load_task("mathvision", path=parquet(tmp_path, CASES["mathvision"][0])).problems[0]
    picture, words = content(seen)
    assert picture["image_url"]["url"] == f"data:image/png;base64,{base64.b64encode(PNG).decode()}"
    assert words["text"].startswith("Which of these?\n(A) 10\n(B) 12")
    energy = load_task("scibench", path=parquet(tmp_path, CASES["scibench"][0])).problems[1]
    assert energy.gold == "2.0e8"
    assert "in the unit $J$" in content(energy)
    code = load_task("livecodebench-v5", path=parquet(tmp_path, CASES["livecodebench-v5"][0])).problems
    assert "standard input" in content(code[0])
    assert "class Solution" in content(code[1])


def test_files_of_plain_columns_are_read(tmp_path: Path) -> None:
    rows = [{"id": "mine/1", "problem": "2 + 2?", "answer": "4"}, {"problem": "3?", "answer": "3"}]
    task = load_task("gsm8k", path=jsonl(tmp_path, rows))
    assert task.problems[0].id == "mine/1"
    assert [v.correct for v in task.verify(task.problems, ["4", "4"])] == [True, False]


def test_unverifiable_golds_are_named(tmp_path: Path) -> None:
    rows = [
        {"problem": "?", "answer": "", "id": "empty"},
        {"problem": "?", "answer": " $ $ ", "id": "blank"},
        {"problem": "?", "answer": "5", "id": "fine"},
    ]
    path = jsonl(tmp_path, rows)
    with pytest.raises(ConfigError, match=r"of 3 .*'aime2025'.*aime2025/empty"):
        load_task("aime2025", path=path)
    with pytest.warns(RuntimeWarning, match="aime2025/empty"):
        assert "aime2025/empty" not in [p.id for p in load_task("aime2025", path=path, golds="drop").problems]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_task("aime2025", path=path, golds="unchecked")
    with pytest.raises(ConfigError, match="refuse, drop or unchecked"):
        load_task("aime2025", path=path, golds="ignore")
    letter = {**CASES["mathvision"][0][0], "answer": "F"}
    with pytest.raises(ConfigError, match=r"'F'.* 5 "):
        load_task("mathvision", path=parquet(tmp_path, [letter]))


def test_files_that_cannot_be_read_say_so(tmp_path: Path) -> None:
    (tmp_path / "incomplete.jsonl").write_text('{"problem": "?", "answer": "1"}\n{"problem": ')
    with pytest.raises(ConfigError, match=r"incomplete.jsonl, line 2"):
        load_task("aime2025", path=tmp_path / "incomplete.jsonl")
    (tmp_path / "list.json").write_text("[1, 2]")
    with pytest.raises(ConfigError, match=r"list\.json"):
        load_task("aime2025", path=tmp_path / "list.json")
    (tmp_path / "x.parquet").write_bytes(b"PAR1 no")
    for name in ("missing.jsonl", "x.parquet"):
        with pytest.raises(ConfigError, match=name):
            load_task("aime2025", path=tmp_path / name)
    with pytest.raises(ConfigError, match=r"rows\.xml.*\.jsonl"):
        load_task("aime2025", path=tmp_path / "rows.xml")
    with pytest.raises(ConfigError, match="livebench-language"):
        load_task("livebench-language", path=jsonl(tmp_path, [livebench("c", "connections", "a")]))
    with pytest.raises(ConfigError, match=r"HuggingFaceH4/MATH-500.*path=FILE"):
        load_task("math500")


def test_tests_that_cannot_be_decoded_are_faults(tmp_path: Path) -> None:
    spoilt = {**contest("abc", "2024-09-01"), "public_test_cases": "[", "private_test_cases": ""}
    with pytest.raises(ConfigError, match="livecodebench-v5/abc"):
        load_task("livecodebench-v5", path=parquet(tmp_path, [spoilt]), golds="refuse")
    hidden = {**contest("abc", "2024-09-01"), "private_test_cases": "AAAA"}
    task = load_task("livecodebench-v5", path=parquet(tmp_path, [hidden]), golds="refuse")
    assert [one for one, _ in bad_golds(task)] == ["livecodebench-v5/abc"]


class Planted:
    def __reduce__(self) -> tuple[Any, ...]:
        return (print, ("run",))


def test_private_cases_cannot_run_code(capsys: pytest.CaptureFixture[str]) -> None:
    evil = base64.b64encode(zlib.compress(pickle.dumps(Planted()))).decode()
    with pytest.raises(ValueError, match="cases cannot be decoded"):
        decode_cases(evil)
    assert "run" not in capsys.readouterr().out


def test_private_cases_that_unpack_without_end_or_are_mangled_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = base64.b64encode(zlib.compress(bytes(10_000_000))).decode()
    monkeypatch.setattr(code_tasks, "CASES_BYTES", 1_000_000)
    with pytest.raises(ValueError, match="1,000,000"):
        decode_cases(bomb)
    whole = pickle.dumps(json.dumps([{"input": "1", "output": "2"}]))
    for place in range(len(whole)):
        mangled = base64.b64encode(zlib.compress(whole[:place] + b"\x93" + whole[place + 1 :])).decode()
        with contextlib.suppress(ValueError):
            decode_cases(mangled)


def test_the_program_is_the_last_fenced_block() -> None:
    assert program_in("```python\na\n```\ntext\n```\nb\n```").answer == "b\n"
    assert program_in("<think>```python\na\n```</think>\n```py\nc\n```").answer == "c\n"
    assert program_in("def f():\n    return 1").extracted_by == "bare"
    assert program_in("```python\nnever closed").answer is None
    assert program_in("I cannot do it.").answer is None


@needs_sandbox
def test_programs_that_loop_or_exit_are_wrong_and_judged_once(tmp_path: Path) -> None:
    task = load_task("humaneval", path=jsonl(tmp_path, CASES["humaneval"][0]))
    problems = [task.problems[0]] * 3
    replies = ["```python\nimport os\nos._exit(0)\n```", "```python\ndef top(xs):\n    return 3\n```", "no program"]
    verdicts = task.verify(problems, replies)
    assert [(v.correct, v.status) for v in verdicts] == [(False, "ok"), (True, "ok"), (False, "no_answer")]
    judged = []
    task.verifier.judge = lambda programs, suites: judged.append(programs)  # type: ignore[attr-defined]
    assert task.verify(problems, replies) == verdicts
    assert judged == []
    task.close()  # type: ignore[attr-defined]


def test_rounding_and_tolerance_are_exact() -> None:
    values = [Fraction(text) for text in ("1.25", "-0.04", "3", "12.349")]
    assert [decimal(value, 1) for value in values] == ["1.2", "0.0", "3.0", "12.3"]
    assert decimal(Fraction("2.5"), 0) == "2"


def test_unknown_arguments_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"task 'math500'.*its arguments are: .*path, split, limit, ids"):
        load_task("math500", paht="x")


def test_gym_tasks_have_names_and_levels() -> None:
    pytest.importorskip("reasoning_gym")
    easy, hard = load_task("gym/chain_sum", size=3), load_task("gym/chain_sum/hard", size=3, limit=2)
    assert (easy.name, hard.name) == ("gym/chain_sum", "gym/chain_sum/hard")
    assert len(hard.problems) == 2
    assert len(hard.problems[0].gold) > 3
    assert bad_golds(hard) == []
    named = load_task("gym/graph_color_vertex15", size=2, ids="graph_color/45/1")
    assert [p.id for p in named.problems] == ["graph_color/45/1"]
    with pytest.raises(ConfigError, match="easy or hard"):
        load_task("gym/chain_sum/odd")
    with pytest.raises(ConfigError, match="'boxnet'"):
        load_task("gym/boxnet/hard")
    with pytest.raises(ConfigError, match="puzzle24"):
        load_task("gym/puzzle24/hard")
    for task in (easy, hard, named):
        task.close()  # type: ignore[attr-defined]
