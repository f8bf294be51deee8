"""The completion script: bash completes commands, flags, tasks and recipes with it, and starts no Python."""

import shutil
import subprocess

import pytest

from offleash.train.cli import COMMANDS, main

TRY = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _offleash
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    from offleash.train.commands.completion import _flags, completion_script

    path = tmp_path_factory.mktemp("completion") / "offleash.bash"
    path.write_text(completion_script({name: _flags(name, module) for name, (module, _) in COMMANDS.items()}))
    return path


def completed(script, *words):
    line = [shutil.which("bash"), "--norc", "-c", TRY, "bash", str(script), *words]
    return subprocess.run(line, capture_output=True, text=True, check=True, env={"PATH": ""}).stdout.split()


def test_bash_completes_commands_flags_tasks_and_recipes(script):
    assert completed(script, "offleash", "") == list(COMMANDS)
    assert completed(script, "offleash", "samp") == ["sample"]
    assert completed(script, "offleash", "sample", "--temp") == ["--temperature", "--template", "--template-args"]
    assert completed(script, "offleash", "sample", "--task", "count") == ["countdown"]
    assert completed(script, "offleash", "train", "--config", "models/dapo") == ["models/dapo-1.5b", "models/dapo-7b"]
    assert completed(script, "offleash", "train", "--output") == ["--output_dir"]
    assert completed(script, "offleash", "init", "lab_c") == ["lab_change", "lab_colouring"]


def test_where_a_file_is_meant_the_shell_completes_it(script):
    assert completed(script, "offleash", "compare", "") == []
    assert completed(script, "offleash", "train", "--config", "mine") == []


def test_every_command_offers_help(script):
    for name in COMMANDS:
        if name != "train":
            assert "--help" in completed(script, "offleash", name, "--h"), name


def test_the_command_prints_the_script(script, capsys):
    assert main(["completion"]) == 0
    assert capsys.readouterr().out == script.read_text()
