import os
import subprocess
import sys
import time
from importlib.metadata import version

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


def test_help_is_fast_and_imports_nothing_heavy():
    code = (
        "import sys; from offleash.train.cli import main; main(['--help']); "
        "print([name for name in ('torch', 'transformers', 'numpy', 'trl', 'scipy') if name in sys.modules])"
    )
    start = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
    assert time.monotonic() - start < 2  # 0.2 s on an idle core


@pytest.mark.parametrize("command", [["--help"], ["train", "--help"]])
def test_a_closed_pipe_prints_no_traceback(command):
    reader, writer = os.pipe()
    os.close(reader)  # as `| head -0` does, before anything is written
    done = subprocess.run([*PROGRAM, *command], stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")
