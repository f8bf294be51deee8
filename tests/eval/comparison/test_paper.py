"""The shipped pairs: their numbers are the paper's, their commands parse, and compare prints them beside ours."""

import importlib.util
import json
import shlex
from pathlib import Path
from types import SimpleNamespace

import pytest

from offleash.eval.commands.pairs import commands
from offleash.eval.commands.sample_options import parser
from offleash.eval.commands.score_options import parser as score_parser
from offleash.eval.comparison.paper import find_pair, load_pair, pair_names
from offleash.eval.errors import ConfigError
from offleash.eval.pool.testing import make_pool
from offleash.eval.problem import Problem
from offleash.eval.report.paper import published_warnings
from offleash.eval.stats.support import Dynamics
from offleash.eval.tasks.benchmarks import BENCHMARKS
from offleash.train.cli import main

TABLES = {
    "prorl-1.5b-v1": ("T6", "ProRL-v1"), "prorl-1.5b-v2": (None, "ProRL-v2"), "acereason-7b": ("T7", "Nemotron-7B"),
    "skywork-or1-7b": ("T8", "Skywork-7B"), "acereason-14b": ("T9", "Nemotron-14B"),
    "phi4-reasoning-plus": ("T10", "Phi4-14B"), "ovr-7b": ("T11", "OVR-7B"), "olmo-2-1b": ("T12", "OLMo"),
    "dapo-32b": (None, None),
}  # fmt: skip
NAMES = {
    "aime2024": "AIME24", "aime2025": "AIME25", "amc2023": "AMC23", "math500": "MATH500", "minerva": "Minerva",
    "olympiadbench": "Olympiad", "simpleqa": "SimpleQA", "livebench-reasoning": "LiveBench-R",
    "livebench-coding": "LiveBench-C", "livebench-language": "LiveBench-L", "scibench": "SciBench",
    "livecodebench-v5": "LCBv5", "livecodebench-v6": "LCBv6", "mathvista": "MathVista", "mathvision": "MathVision",
}  # fmt: skip


@pytest.fixture(scope="module")
def printed() -> dict[str, Dynamics]:
    """Every printed row of the paper, from the tests of the metrics, where printed metrics are checked as well."""
    spec = importlib.util.spec_from_file_location("paper_rows", Path(__file__).parents[1] / "stats" / "test_support.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return {name: table for name, _, table in map(module.parse, module.ROWS)}


def added(tables) -> Dynamics:
    rows = [(t.preserved, t.shrunk, t.expanded, t.out) for t in tables]
    return Dynamics(*(sum(column) for column in zip(*rows, strict=True)))


def test_every_pair_of_tables_1_and_5_is_there():
    assert set(pair_names()) == set(TABLES)


@pytest.mark.parametrize("name", TABLES)
def test_a_pairs_counts_are_the_printed_ones_and_its_domains_their_sums(name, printed):
    pair, (table, row) = find_pair(name), TABLES[name]
    for task, found in pair.paper.tasks.items():
        assert found == printed[f"{table} {NAMES[task]}"], task
        assert found.total == BENCHMARKS[task].size or task in ("olympiadbench", "simpleqa"), task
    for domain, found in pair.paper.domains.items():
        assert found == printed[f"T1 {row} {domain.title()}"]
        if table is not None:
            assert found == added(t for task, t in pair.paper.tasks.items() if BENCHMARKS[task].domain == domain)
    if f"T1 {row} Overall" in printed:
        assert added(pair.paper.domains.values()) == printed[f"T1 {row} Overall"]
    assert set(pair.paper.tasks) in (set(), set(pair.tasks))


def test_the_entropy_study_has_the_averages_it_prints():
    averages = {  # avg, tokens, token entropy, answer entropy: base, policy
        "prorl-1.5b-v1": ((0.5454, 0.6543), (10422, 6479), (0.44, 0.52), (1.30, 0.66)),
        "acereason-7b": ((0.6924, 0.7520), (7745, 6995), (0.37, 0.23), (0.75, 0.50)),
        "skywork-or1-7b": ((0.6924, 0.7471), (7745, 10096), (0.37, 0.16), (0.75, 0.54)),
        "acereason-14b": ((0.7539, 0.7958), (6755, 8697), (0.33, 0.14), (0.54, 0.38)),
        "dapo-32b": ((0.4303, 0.6129), (1426, 4989), (0.18, 0.29), (1.61, 0.61)),
    }
    for name, rows in averages.items():
        samples = find_pair(name).paper.samples
        assert len(samples) == 5
        for key, means in zip(("avg", "tokens", "token_entropy", "answer_entropy"), rows, strict=True):
            for side in (0, 1):
                mean = sum(task[key][side] for task in samples.values()) / 5
                assert mean == pytest.approx(means[side], abs=1 if key == "tokens" else 0.0061), (name, key, side)


@pytest.mark.parametrize("name", TABLES)
def test_every_printed_sample_command_is_one_that_sample_can_parse(name):
    pair, drawn, studied = find_pair(name), {"base": [], "policy": []}, {"base": [], "policy": []}
    lines = [shlex.split(text.replace("\\\n", "")) for text in commands(pair)]
    for words in lines:
        if words[1] in ("score", "compare"):
            continue
        if words[:2] == ["vllm", "serve"]:  # images go to a server
            assert name == "ovr-7b"
            continue
        assert words[:2] == ["offleash", "sample"]
        options = parser().parse_args(words[2:])
        arm, _, apart = options.pool.split("/")[2].partition("-")
        if apart:
            assert (apart, options.k, options.plan) == ("32", 32, "fixed")
            studied[arm] += options.task
            continue
        drawn[arm] += options.task
        assert (options.served_model or options.model) == (pair.base if arm == "base" else pair.policy)
        assert (options.engine == "openai") == (name == "ovr-7b")
        assert {pair.tasks[task] for task in options.task} == {options.k}
        assert (options.temperature, options.top_p) == (0.6, 0.95)
    assert sorted(drawn["base"]) == sorted(drawn["policy"]) == sorted(pair.tasks)
    assert lines[-1][:2] == ["offleash", "compare"]
    expected = [] if name == "dapo-32b" else sorted(pair.paper.samples)
    assert sorted(studied["base"]) == sorted(studied["policy"]) == expected


@pytest.mark.parametrize("name", ["prorl-1.5b-v1", "dapo-32b"])
def test_what_the_entropy_study_compares_is_drawn_in_full_scored_and_compared(name):
    pair = find_pair(name)
    lines = [shlex.split(text.replace("\\\n", "")) for text in commands(pair)]
    pools = {}
    for words in lines:
        if words[1] == "sample":
            options = parser().parse_args(words[2:])
            pools |= {f"{options.pool}/{task}".replace(f"{task}/{task}", task): options for task in options.task}
    scored = [score_parser().parse_args(words[2:]) for words in lines if words[1] == "score"]
    assert [options.model for options in scored] == [[pair.base], [pair.policy]]
    for options in scored:
        assert [str(path).rpartition("/")[2] for path in options.pools] == list(pair.paper.samples)
        for path in map(str, options.pools):
            drawn = pools[path]
            assert (drawn.k, drawn.plan, options.k) == (32, "fixed", 32)
            assert (drawn.model, drawn.revision, drawn.tokenizer) == (
                options.model[0], options.revision, options.tokenizer
            )  # fmt: skip
    compared = [words[2:4] for words in lines if words[1] == "compare"]
    assert compared[-1] == [str(options.pools[0].parent) for options in scored]
    assert len(compared) == (1 if name == "dapo-32b" else 2)


def test_a_smaller_measurement_can_be_asked_for_and_a_foreign_task_is_refused():
    pair = find_pair("olmo-2-1b")
    assert [text.count("--k 8") for text in commands(pair, tasks=["math500"], k=8)] == [1, 1, 0]
    with pytest.raises(ConfigError, match=r"--k.*0"):
        list(commands(pair, k=0))
    with pytest.raises(ConfigError, match=r"olmo-2-1b.*countdown"):
        list(commands(pair, tasks=["countdown"]))


def test_the_list_names_every_pair(capsys):
    assert main(["pairs"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in TABLES)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("{bases: x, tasks: {}, paper: {}}", "bases"),
        ("{tasks: {maths: 3}, paper: {}}", "maths"),
        ("{tasks: {math500: 3}, paper: {tasks: {math500: [1, 2]}}}", "pair.yaml"),
        ("{tasks: {math500: 3}, paper: {tasks: {minerva: [1, 2, 3, 4]}}}", "minerva"),
        ("{tasks: {math500: x}, paper: {}}", "math500.*x"),
        ("{tasks: {math500: 0}, paper: {}}", "whole numbers from 1 on"),
        ("[1]", "pair.yaml"),
    ],
)
def test_an_invalid_pair_file_is_an_error_that_names_what_is_wrong(tmp_path, text, named):
    (tmp_path / "pair.yaml").write_text(text)
    with pytest.raises(ConfigError, match=named):
        load_pair(tmp_path / "pair.yaml")


def draw_as_printed(folder: Path, task: str, counts: Dynamics, k: int = 2) -> None:
    """A pool of each arm, k draws per problem, in which problems are solved as the paper counted them."""
    cells = (counts.preserved, counts.shrunk, counts.expanded, counts.out)
    problems = [Problem(f"{task}/{i}", f"{task} {i}?", "7", {"domain": "math"}) for i in range(counts.total)]
    solved = {"base": (1, 1, 0, 0), "policy": (1, 0, 1, 0)}
    for arm, flags in solved.items():
        right = [bool(flag) for flag, count in zip(flags, cells, strict=True) for _ in range(count)]
        pool = make_pool(
            folder / arm / task, None, k, problems, task=task, model=arm, weights=arm, temperature=0.6, top_p=0.95
        )
        for index in range(k):
            answers = ["7" if good and index == 0 else "8" for good in right]
            pool.append(
                {
                    "problem_id": [problem.id for problem in problems],
                    "index": [index] * len(problems),
                    "answer": answers,
                    "correct": [answer == "7" for answer in answers],
                    "status": ["ok"] * len(problems),
                    "tokens": [5] * len(problems),
                    "completion": answers,
                }
            )


def test_compare_prints_the_papers_numbers_beside_ours(tmp_path, capsys):
    pair = find_pair("ovr-7b")
    for task, counts in pair.paper.tasks.items():
        draw_as_printed(tmp_path, task, counts)
    line = [
        "compare",
        str(tmp_path / "base"),
        str(tmp_path / "policy"),
        "--pair",
        "ovr-7b",
        "--quiet",
        "--resamples",
        "20",
    ]
    assert main(line) == 0
    shown = capsys.readouterr().out.split("Comparison with the paper: support")[1].splitlines()
    rows = [line.split() for line in shown if " ours " in line or " paper " in line]
    assert [row[0] for row in rows] == ["mathvista", "paper", "mathvision", "paper", "math", "paper"]
    for ours, theirs in zip(rows[::2], rows[1::2], strict=True):
        assert ours[2] == "2"
        assert theirs[1] == "8,192"
        assert ours[3:] == theirs[2:]
    assert rows[-1][2:7] == ["1,304", "781", "4", "3", "516"]


PAPER = (["5700", "5070"], ["0.42", "0.54"], ["0.46", "0.18"], [".850", ".920"])


def test_samples_of_as_many_draws_as_the_papers_are_beside_them(tmp_path, capsys):
    pair = find_pair("prorl-1.5b-v1")
    draw_as_printed(tmp_path, "math500", pair.paper.tasks["math500"], k=32)
    line = ["compare", str(tmp_path / "base"), str(tmp_path / "policy"), "--pair", pair.name, "--quiet"]
    assert main([*line, "--resamples", "20"]) == 0
    shown = capsys.readouterr().out.split("Comparison with the paper: samples")[1]
    rows = [words for words in map(str.split, shown.splitlines()) if words[-2:] in PAPER]
    assert [words[-5] for words in rows] == ["32"] * 4
    assert [words[-4:-2] for words in rows][:2] == [[".031", ".031"], ["5.00", "5.00"]]
    assert rows[2][-4:-2] == ["–", "–"]  # not scored


def test_samples_are_beside_the_papers_and_incomplete_domains_are_not(tmp_path, capsys):
    draw_as_printed(tmp_path, "math500", find_pair("prorl-1.5b-v1").paper.tasks["math500"])
    line = ["compare", str(tmp_path / "base"), str(tmp_path / "policy"), "--pair", "prorl-1.5b-v1", "--quiet"]
    assert main([*line, "--resamples", "20"]) == 0
    shown = capsys.readouterr().out.split("Comparison with the paper: support")[1]
    assert "16363" not in shown
    assert [words for words in map(str.split, shown.splitlines()) if words[-2:] == ["5700", "5070"]]
    assert "entropy" in shown
    rows = [words for words in map(str.split, shown.splitlines()) if words[-2:] in PAPER]
    assert [words[-5:-2] for words in rows] == [["2", "–", "–"]] * 4
    assert "non-math" not in shown
    assert "1,355" not in shown


def test_what_was_not_drawn_as_the_paper_drew_it_is_said_and_every_file_has_the_tables(tmp_path, capsys):
    pair = find_pair("prorl-1.5b-v1")
    draw_as_printed(tmp_path, "math500", pair.paper.tasks["math500"])
    files = {name: tmp_path / f"report.{name}" for name in ("html", "markdown", "latex", "json")}
    line = ["compare", str(tmp_path / "base"), str(tmp_path / "policy"), "--pair", pair.name, "--quiet"]
    assert (
        main([*line, "--resamples", "20", *(w for name, path in files.items() for w in (f"--{name}", str(path)))]) == 0
    )
    said = [text for text in capsys.readouterr().err.splitlines() if f"({pair.name})" in text]
    models = [("base", pair.base), ("policy", pair.policy)]
    for side, model in models:
        assert sum(f"model of the {side} is {side}, but {model} " in text for text in said) == 1
        assert sum(f"max_new_tokens of the {side} is 8, but 32768 " in text for text in said) == 1
    assert len(said) == 4
    for name, path in files.items():
        text = path.read_text()
        assert "Comparison with the paper: samples" in text, name
        assert "is 8, but 32768" in text, name
    record = json.loads(files["json"].read_text())
    assert [table["name"] for table in record["published"]] == ["published", "published-samples"]


def test_pools_drawn_as_the_paper_drew_them_need_no_word():
    pair = find_pair("dapo-32b")
    spec = SimpleNamespace(model=pair.base, temperature=0.6, top_p=0.95, max_new_tokens=32768)
    copy = SimpleNamespace(**{**vars(spec), "model": "/models/DAPO-Qwen-32B"})
    assert published_warnings(pair, [spec], [copy]) == []
    hot = SimpleNamespace(**{**vars(copy), "temperature": 1.0, "top_p": -1.0})
    one, other = published_warnings(pair, [spec], [hot, hot])
    assert "temperature of the policy is 1, but 0.6" in one
    assert "top_p of the policy is unknown, but 0.95" in other
