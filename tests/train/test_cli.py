import contextlib
import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from offleash.train.cli import COMMANDS, main

PROGRAM = [sys.executable, "-m", "offleash.train.cli"]


def test_help_lists_every_command_with_one_line(capsys):
    assert main(["--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [name for name in COMMANDS if not any(line.split()[:1] == [name] for line in lines)] == []
    assert max(map(len, lines)) <= 100


def test_no_command_prints_the_help_and_fails(capsys):
    assert main([]) == 2
    assert "usage: offleash" in capsys.readouterr().out


def test_the_version_is_that_of_the_package(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.split() == ["offleash", version("offleash")]


def test_an_unknown_command_is_named_with_those_that_exist(capsys):
    assert main(["trian"]) == 2
    told = capsys.readouterr().err
    assert "'trian'" in told
    assert "train" in told


NEVER = ("torch", "transformers", "trl", "accelerate", "datasets", "scipy", "matplotlib")
"""What neither a help text nor a refused argument needs."""
SELDOM = ("pyarrow", "numpy", "pandas", "httpx")
READ_TABLES = {"soup", "pairs", "import", "completion"}
"""Commands whose arguments need numpy or pyarrow."""
SAMPLE = ["sample", "--model", "lab", "--task", "countdown", "--pool", "pool", "--k", "8"]
REFUSED = [
    ["sample"],
    [*SAMPLE, "--k", "0"],
    [*SAMPLE, "--k", "many"],
    [*SAMPLE, "--temperature", "0"],
    [*SAMPLE, "--top-p", "2"],
    [*SAMPLE, "--task", "countdwn"],
    [*SAMPLE, "--task-args", "[]"],
    [*SAMPLE, "--engine", "vlm"],
    [*SAMPLE, "--engine-args", "{"],
    [*SAMPLE, "--successes", "3"],
    [*SAMPLE, "--ids", "@no-such-file"],
    [*SAMPLE, "--ray-workers", "2"],
    [*SAMPLE, "--tokens-per-second", "5"],
    [*SAMPLE, "--max-new-tokens", "0"],
    [*SAMPLE, "--config", "no-such-file.yaml"],
    ["score", "pool", "--model", "lab", "--temperature", "0"],
    ["score", "--model", "lab"],
    ["compare", "nowhere"],
    ["compare", "a", "b", "--json", "no/such/folder/x.json"],
    ["compare", "a", "--base", "b"],
    ["tasks", "countdwn"],
    ["tasks", "--limit", "0"],
    ["where", "lab", "lab", "--task", "countdwn"],
    ["check", "labb"],
    ["check", "lab", "--mfu", "2"],
    ["check", "lab", "--gpu", "H1000"],
    ["train", "--config", "labb"],
    ["variants", "--config", "labb", "--explorers", "focal", "--out", "out"],
    ["variants", "--out", "out"],
    ["init", "labb"],
    ["recipes", "nothing-like-it"],
    ["metrics", "nothing-like-it"],
]
TRY = """
import contextlib, io, json, sys
from offleash.train.cli import main

for words in json.loads(sys.argv[1]):
    said = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
        try:
            status = main(words)
        except SystemExit as error:
            status = error.code
    heavy = [name for name in json.loads(sys.argv[2]) if name in sys.modules]
    print(json.dumps([status, said.getvalue(), heavy]))
"""


def tried(commands: list[list[str]], modules: tuple[str, ...], folder: Path) -> list[list[Any]]:
    """Exit status, what was said on standard error, and which modules are there then, of each command in turn."""
    line = [sys.executable, "-c", TRY, json.dumps(commands), json.dumps(modules)]
    done = subprocess.run(line, capture_output=True, text=True, check=True, cwd=folder)
    return [json.loads(text) for text in done.stdout.splitlines()]


@pytest.mark.long
def test_arguments_are_refused_in_one_line_before_anything_heavy_is_imported(tmp_path):
    for words, (status, said, heavy) in zip(REFUSED, tried(REFUSED, NEVER + SELDOM, tmp_path), strict=True):
        assert (words, status, heavy) == (words, 2, [])
        assert said.startswith("offleash: error: "), words
        assert said.count("\n") == 1, words
    assert list(tmp_path.iterdir()) == []


def test_help_imports_nothing_heavy(tmp_path):
    light = [["--help"], *([name, "--help"] for name in COMMANDS if name not in READ_TABLES)]
    for words, (status, _, heavy) in zip(light, tried(light, NEVER + SELDOM, tmp_path), strict=True):
        assert (words, status, heavy) == (words, 0, [])
    tables = [[name, "--help"] for name in sorted(READ_TABLES)]
    for words, (status, _, heavy) in zip(tables, tried(tables, NEVER, tmp_path), strict=True):
        assert (words, status, heavy) == (words, 0, [])


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_a_command_ends_with_examples(name, capsys):
    with contextlib.suppress(SystemExit):
        main([name, "--help"])
    said = capsys.readouterr().out
    _, found, examples = said.rpartition("\nexamples:\n")
    assert found
    assert f"offleash {name}" in examples
    assert "\n\n\n" not in said
    lines = examples.splitlines()
    assert all(line.startswith("  ") for line in lines if line), [line for line in lines if line and line[:2] != "  "]


@pytest.mark.parametrize("command", [["--help"], ["train", "--help"]])
def test_a_closed_pipe_prints_no_traceback(command):
    reader, writer = os.pipe()
    os.close(reader)  # as `| head -0` does, before anything is written
    done = subprocess.run([*PROGRAM, *command], stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")
