"""`offleash sample --data`, `offleash tasks data`, and modules of one's own beside one's files."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from offleash.eval.pool.pool import Pool
from offleash.train.cli import main

ROWS = [{"id": f"t{n}", "sum": f"1 + {n}", "total": str(n + 1)} for n in range(4)]
COLUMNS = ["--question", "sum", "--gold", "total"]
DRAW = ["--model", "lab", "--k", "2", "--max-new-tokens", "8", "--pool"]
MODULE = """
def judge(completion, gold, row):
    import beside
    return beside.total(row["sum"]) == completion.strip()


class Sums:
    name, version = "sums", "1"

    def __init__(self, low=0, n=4):
        from offleash.eval import Problem
        self.problems = [Problem(f"s{i}", f"1 + {i} =", str(1 + i)) for i in range(low, low + n)]

    def verify(self, problems, completions, truncated=None):
        import beside
        return beside.verdicts(problems, completions)

    def correct_answers(self, problem):
        return (problem.gold,)

    def gold_completion(self, problem):
        return problem.gold
"""
BESIDE = """
from offleash.eval import Verdict


def total(text):
    return str(sum(map(int, text.split("+"))))


def verdicts(problems, completions):
    return [Verdict(text.strip(), text.strip() == p.gold, "ok") for p, text in zip(problems, completions)]
"""


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    """A folder with a benchmark, a module, and one that the module imports only when it is called."""
    monkeypatch.chdir(tmp_path)
    Path("sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    Path("my_work.py").write_text(MODULE)
    Path("beside.py").write_text(BESIDE)
    return tmp_path


def console(*words: str) -> "subprocess.CompletedProcess[str]":
    program = str(Path(sys.executable).with_name("offleash"))
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    env.pop("PYTHONPATH", None)
    return subprocess.run([program, *words], env=env, capture_output=True, text=True, timeout=300)


def test_a_benchmark_is_sampled_compared_and_reported_under_its_name(workplace, capsys):
    for pool in ("a", "b"):
        words = ["--seed", "1"] if pool == "b" else []
        given = ["--data", "sums.jsonl", *COLUMNS, "--verifier", "exact", "--limit", "3", *words]
        assert main(["sample", *given, *DRAW, pool]) == 0
    assert "sums (version" in capsys.readouterr().out
    pool = Pool.open(Path("a"))
    assert (pool.spec.task, [problem.id for problem in pool.problems]) == ("sums", ["t0", "t1", "t2"])
    assert main(["compare", "a", "b", "--resamples", "20", "--html", "page.html", "--json", "numbers.json"]) == 0
    assert "(sums)" in capsys.readouterr().out
    assert "sums" in Path("page.html").read_text()
    assert '"sums"' in Path("numbers.json").read_text()


def test_data_is_short_for_the_task_and_its_arguments(workplace):
    own = {"path": "sums.jsonl", "question": "sum", "gold": "total", "verifier": "exact", "name": "other"}
    assert main(["sample", "--task", "data", "--task-args", json.dumps(own), *DRAW, "long"]) == 0
    short = ["--data", "sums.jsonl", *COLUMNS, "--verifier", "exact", "--task-args", '{"name": "other"}']
    assert main(["sample", *short, *DRAW, "short"]) == 0
    long, brief = (Pool.open(Path(name)).spec for name in ("long", "short"))
    assert (long.task, long.fingerprint()) == ("other", brief.fingerprint())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--data", "sums.jsonl", "--question", "problem", "--gold", "total", "--verifier", "math"], "'problem'"),
        (["--data", "sums.jsonl", "--verifier", "math"], "'question'"),
        (["--data", "sums.jsonl", "--task", "countdown"], "either --task, or --data"),
        ([], "either --task, or --data"),
        (["--task", "countdown", "--question", "sum", "--data-config", "x"], "--question, --data-config"),
        (["--data", "sums.jsonl", *COLUMNS, "--verifier", "math", "--task-args", '{"gold": "x"}'], "gold is given"),
        (["--data", "sums.jsonl", *COLUMNS, "--verifier", "my_work:nobody"], "has no 'nobody'"),
        (["--data", "empty.csv", *COLUMNS, "--verifier", "math"], "empty"),
    ],
)
def test_mistakes_are_one_line_before_any_model_is_looked_for(workplace, capsys, words, said):
    Path("empty.csv").write_text("sum,total\n")
    assert main(["sample", *words, "--model", "not/there", "--k", "2", "--pool", "none"]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert not Path("none").exists()


def test_problems_are_shown_and_their_golds_verified(workplace, capsys):
    assert main(["tasks", "data", "--path", "sums.jsonl", *COLUMNS, "--verifier", "math", "--show", "1"]) == 0
    shown = capsys.readouterr().out
    assert "sums: 4 problems" in shown
    assert "1 + 0" in shown
    assert main(["tasks", "data", "--path", "sums.jsonl", *COLUMNS, "--verifier", "math", "--check"]) == 0
    assert "4 of 4 gold answers verify" in capsys.readouterr().out
    assert main(["tasks", "data", "--path", "sums.jsonl", *COLUMNS, "--verifier", "my_work:judge", "--check"]) == 0
    rows = [{**row, "total": "9"} for row in ROWS]
    Path("wrong.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    wrong = [
        "tasks",
        "data",
        "--path",
        "wrong.jsonl",
        *COLUMNS,
        "--verifier",
        "my_work:judge",
        "--name",
        "w",
        "--check",
    ]
    assert main(wrong) == 1
    assert "w: 0 of 4 gold answers verify" in capsys.readouterr().out
    assert main(["tasks", "math500", "--question", "sum"]) == 2
    assert "question" in capsys.readouterr().err


@pytest.mark.long
def test_the_console_finds_modules_in_the_working_directory(workplace):
    line = ["sample", "--data", "sums.jsonl", *COLUMNS, "--verifier", "my_work:judge", *DRAW, "judged"]
    done = console(*line)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "error" not in Pool.open(Path("judged")).read(["status"])["status"].to_pylist()


@pytest.mark.slow
def test_every_command_that_takes_a_task_finds_modules_in_the_working_directory(workplace):
    Path("traces.jsonl").write_text(json.dumps({"problem_id": "s1", "completion": "2"}) + "\n")
    Path("drawn.jsonl").write_text(json.dumps({"problem_id": "s1", "completion": "2", "correct": True}) + "\n")
    for line in (
        ["sample", "--task", "my_work:Sums", *DRAW, "sums"],
        ["tasks", "my_work:Sums", "--check"],
        ["import", "drawn.jsonl", "--task", "my_work:Sums", "--pool", "imported"],
        ["score", "--traces", "traces.jsonl", "--task", "my_work:Sums", "--model", "lab", "--json", "scores.json"],
    ):
        done = console(*line)
        assert done.returncode == 0, f"{line}\n{done.stderr[-2000:]}"


@pytest.mark.slow
def test_training_and_checks_find_modules_in_the_working_directory(workplace):
    rows = [{"sum": f"1 + {n}", "total": str(n + 1)} for n in range(20, 36)]
    Path("train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    own = {"question": "sum", "gold": "total", "verifier": "my_work:judge"}
    data = {"train_args": {**own, "path": "train.jsonl"}, "probe_args": {**own, "path": "sums.jsonl"}}
    plain = {key: {**value, "chat": False} for key, value in data.items()}
    chat, text, other = (
        ["--task", task, *(word for key, value in given.items() for word in (f"--{key}", json.dumps(value)))]
        for task, given in (
            ("data", data),
            ("data", plain),
            ("my_work:Sums", {"train_args": {"low": 20, "n": 16}, "probe_args": {"n": 2}}),
        )
    )
    small = {"max_steps": 1, "monitor_every": 1, "monitor_k": 2, "monitor_score_k": 2}
    small |= {"monitor_exact": "false", "use_cpu": "true"}
    words = [word for key, value in small.items() for word in (f"--{key}", str(value))]
    assert console("check", "lab", *other, *words).returncode == 0
    refused = console("train", "--config", "lab", "--output_dir", "runs/chat", *chat, *words)
    assert "chat template" in refused.stderr
    assert "Traceback" not in refused.stderr
    done = console("train", "--config", "lab", "--output_dir", "runs/own", *text, *words)
    assert done.returncode == 0, done.stderr[-2000:]
    steps = sorted(Path("runs/own/pools").glob("step-*"))
    assert [Pool.open(step).spec.task for step in steps] == ["sums", "sums"]
    assert [path.name.rsplit("-", 1)[0] for path in Path("runs/base-pools").iterdir() if path.is_dir()] == ["sums"]


def test_a_pool_of_ones_own_benchmark_is_judged_again_by_the_flags_it_was_sampled_with(workplace, capsys):
    flags = ["--data", "sums.jsonl", *COLUMNS, "--instruction", ""]
    assert main(["sample", *flags, "--verifier", "exact", *DRAW, "p"]) == 0
    assert main(["rejudge", "p"]) == 2
    assert "'sums'" in (said := capsys.readouterr().err)
    assert "--data" in said
    assert main(["rejudge", "p", *flags, "--verifier", "my_work:judge"]) == 0
    assert "judged 8 stored completions again" in capsys.readouterr().out
    assert "function" in Pool.open(Path("p")).spec.task_version


def test_commands_that_take_one_task_take_either_a_name_or_a_file(workplace, capsys):
    for command in (["watch", "run", "--base", "lab", "--k", "2"], ["rejudge", "p"]):
        assert main([*command, "--data", "sums.jsonl", *COLUMNS, "--verifier", "math", "--task", "countdown"]) == 2
        assert "either --task, or --data" in capsys.readouterr().err
    assert main(["watch", "run", "--base", "lab", "--k", "2"]) == 2
    assert "either --task, or --data" in capsys.readouterr().err
    assert main(["watch", "run", "--base", "lab", "--k", "2", "--data", "sums.jsonl", "--question", "total"]) == 2
    assert "verifier" in capsys.readouterr().err
