"""`--config FILE.yaml`: the flags of a command from a file, checked as flags are, overridden by the command line."""

from pathlib import Path
from typing import Any

import pytest

from offleash.eval.commands.config_file import parse_with_config
from offleash.eval.commands.sample_options import parser as sample_parser
from offleash.eval.errors import ConfigError
from offleash.eval.flags import command_parser

SAMPLE = ["--model", "lab", "--task", "countdown", "--pool", "p", "--k", "8"]


def parsed(tmp_path: Path, text: str, *argv: str) -> Any:
    path = tmp_path / "file.yaml"
    path.write_text(text)
    return parse_with_config(sample_parser(), ["--config", str(path), *argv])


def test_a_file_gives_the_same_options_as_the_flags(tmp_path: Path) -> None:
    text = (
        "model: lab\ntask: [countdown, gsm8k]\ntask-args: {split: probe, n: 4}\npool: p\nk: 8\ntop_p: 0.5\n"
        "stop: ['-x', '--', '1']\nray: true\ndry-run: true\nplan: until\nlimit: null\nengine_args: {batch_size: 2}\n"
    )
    flags = [
        *("--model", "lab", "--task", "countdown", "gsm8k", "--task-args", '{"split": "probe", "n": 4}', "--pool", "p"),
        *("--k", "8", "--top-p", "0.5", "--ray", "--dry-run", "--plan", "until"),
        *("--engine-args", '{"batch_size": 2}', "--stop=-x"),
    ]
    found = vars(parsed(tmp_path, text))
    wanted = vars(parse_with_config(sample_parser(), flags))
    assert found.pop("stop") == ["-x", "--", "1"]  # texts that a command line could not give
    assert wanted.pop("stop") == ["-x"]
    assert found.pop("config") == tmp_path / "file.yaml"
    assert wanted.pop("config") is None
    assert found == wanted


def test_flags_override_the_file_and_lists_are_replaced_not_extended(tmp_path: Path) -> None:
    text = "model: a\ntask: [one, two]\npool: p\nk: 8\ntask_args: [{n: 1}, {n: 2}]\n"
    found = parsed(tmp_path, text, "--k", "16", "--task", "three", "--task-args", '{"n": 3}')
    assert (found.model, found.k, found.task, found.task_args) == ("a", 16, ["three"], ['{"n": 3}'])


def test_a_required_flag_may_come_from_either_and_must_come_from_one(tmp_path: Path) -> None:
    assert parsed(tmp_path, "k: 8", *SAMPLE[:-2]).k == 8
    with pytest.raises(ConfigError, match="--model, --pool"):
        parsed(tmp_path, "k: 8")


def test_options_that_say_the_same_override_each_other(tmp_path: Path) -> None:
    path = tmp_path / "file.yaml"
    path.write_text("base: [b]\npolicy: [p, q]\n")

    def parse(*argv: str) -> Any:
        parser = command_parser("x", "")
        parser.add_argument("pools", nargs="*")
        parser.add_argument("--base", nargs="+")
        parser.add_argument("--policy", nargs="+", action="append")
        return parse_with_config(parser, ["--config", str(path), *argv], alternatives=("pools", "base", "policy"))

    assert (parse().base, parse().policy, parse().pools) == (["b"], [["p", "q"]], [])
    assert (parse("run").base, parse("run").policy, parse("run").pools) == (None, None, ["run"])


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("tempertaure: 1", r"tempertaure \(did you mean temperature\?\)"),
        ("config: other.yaml", "config"),
        ("help: true", "help"),
        ("k: [1]", "k cannot be"),
        ("k: 1.5", "k must be an integer"),
        ("k: true", "k cannot be"),
        ("plan: never", "fixed, until"),
        ("dry_run: 1", "dry_run must be true or false"),
        ("dry-run: true\ndry_run: true", "dry_run is given twice"),
        ("k: 1\nk: 2", "'k' is duplicated"),
        ("model: {a: 1}", "model cannot be"),
        ("- 1", "mapping"),
        ("a: [", "file.yaml"),
        ("", "mapping"),
    ],
)
def test_what_a_file_may_not_say_is_refused_by_name(tmp_path: Path, text: str, named: str) -> None:
    with pytest.raises(ConfigError, match=named) as caught:
        parsed(tmp_path, text, *SAMPLE)
    assert "file.yaml" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"gone\.yaml"):
        parse_with_config(sample_parser(), ["--config", str(tmp_path / "gone.yaml"), *SAMPLE])
