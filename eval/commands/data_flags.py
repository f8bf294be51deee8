"""The flags of one's own benchmark: `--data FILE` and what are arguments of the task `data`."""

import argparse
from typing import Any

from offleash.eval.errors import ConfigError
from offleash.eval.flags import json_option

_FLAGS: dict[str, dict[str, Any]] = {
    "question": {"metavar": "COLUMN", "help": "column of the question"},
    "gold": {"metavar": "COLUMN", "help": "column of the reference answer (code needs none)"},
    "verifier": {"help": "math, choice, exact, code, judge, or your own: my_module:my_function(completion, gold, row)"},
    "name": {"help": "name of the benchmark (default: that of the file)"},
    "id": {"metavar": "COLUMN", "help": "column of the ids (default: id if there is one, else a hash)"},
    "config": {"flag": "--data-config", "metavar": "CONFIG", "help": "config of a dataset on the hub"},
    "split": {"help": "split of a dataset on the hub, or start of the names of a folder's files"},
    "instruction": {"metavar": "TEXT", "help": "what follows the question (each verifier has a default; '': nothing)"},
    "choices": {"nargs": "+", "metavar": "COLUMN", "help": "choice: column of the list of options, or one for each"},
    "tests": {"nargs": "+", "metavar": "COLUMN", "help": "code: column of the tests, and that of the function's name"},
}
EITHER = "give either --task, or --data with the file of a benchmark of your own"


def add_data_flags(group: "argparse._ArgumentGroup", *without: str) -> None:
    for name, options in _FLAGS.items():
        if name not in without:
            rest = {key: value for key, value in options.items() if key != "flag"}
            group.add_argument(options.get("flag", f"--{name}"), **rest)


def add_own_benchmark(group: "argparse._ArgumentGroup") -> None:
    """`--data` and its flags, for a command that takes `--task`."""
    group.add_argument("--data", metavar="PATH", help="file, folder or hub id of the problems, instead of --task")
    add_data_flags(group)


def one_task(options: argparse.Namespace) -> tuple[str | None, dict[str, Any]]:
    """The name that --task gives, or "data" for --data, None for neither, and the arguments of that task."""
    if options.task is not None and options.data is not None:
        raise ConfigError(EITHER)
    check_data_flags(options.data, options)
    given = json_option(options.task_args, "--task-args")
    return (options.task, given) if options.data is None else ("data", own_arguments(options, given))


def own_arguments(options: argparse.Namespace, task_args: dict[str, Any]) -> dict[str, Any]:
    """The arguments of the task `data`, for --data."""
    return merged({"path": options.data, **data_arguments(options)}, task_args)


def data_arguments(options: argparse.Namespace) -> dict[str, Any]:
    """The flags that were given, as arguments of the task."""
    values = {name: getattr(options, "data_config" if name == "config" else name) for name in _FLAGS}
    return {name: value for name, value in values.items() if value is not None}


def merged(flags: dict[str, Any], task_args: dict[str, Any]) -> dict[str, Any]:
    """Both; what is given twice is refused."""
    if twice := sorted(flags.keys() & task_args.keys()):
        raise ConfigError(f"{twice[0]} is given as a flag and in --task-args: leave one of them out")
    return {**flags, **task_args}


def check_data_flags(data: str | None, options: argparse.Namespace) -> None:
    """Raise ConfigError for flags of a benchmark that is not given."""
    names = [_FLAGS[name].get("flag", f"--{name}") for name in data_arguments(options)]
    if data is None and names:
        raise ConfigError(f"{', '.join(names)}: only for a benchmark of your own, --data")
