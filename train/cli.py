"""The `offleash` command: finds the subcommand and turns errors into one line and an exit status."""

import os
import sys
from importlib import import_module
from importlib.metadata import version

from offleash.eval.console import say
from offleash.eval.errors import OffleashError

COMMANDS: dict[str, tuple[str, str]] = {
    "train": ("offleash.train.commands.train", "train a recipe: GRPO with a KL penalty, monitor and explorers"),
    "tasks": ("offleash.eval.commands.tasks", "list the tasks, show problems of one, check its gold answers"),
    "sample": ("offleash.eval.commands.sample", "sample completions of a model on tasks and verify them: a pool"),
    "score": ("offleash.eval.commands.score", "perplexity and token entropy of a pool or of traces under any model"),
    "compare": (
        "offleash.eval.commands.compare",
        "what a policy lost and gained relative to its base: tables, files, HTML",
    ),
    "where": ("offleash.eval.commands.where", "where in their texts a policy lost answers of its base"),
    "watch": ("offleash.train.commands.watch", "measure a run from its folder, checkpoint by checkpoint, beside it"),
    "variants": ("offleash.train.commands.variants", "compare exploration variants with plain GRPO and controls"),
    "soup": ("offleash.eval.commands.soup", "interpolate the weights of a policy and its base, without training"),
    "pairs": ("offleash.eval.commands.pairs", "the paper's model pairs: list them, print the commands to measure one"),
    "view": ("offleash.train.commands.view", "look at runs in TensorBoard's Support tab, or write it as a file"),
    "check": ("offleash.train.commands.check", "check a training recipe: data, model, memory, hours, cost"),
    "metrics": ("offleash.train.commands.metrics", "list every logged metric: tag, unit, meaning, function"),
    "doctor": ("offleash.train.commands.doctor", "check the installation: versions, conflicts, and how to fix them"),
    "import": ("offleash.eval.commands.import_samples", "make a pool from samples drawn by another tool"),
    "export": ("offleash.eval.commands.export_samples", "write a pool as a Hugging Face dataset, JSONL or parquet"),
    "merge": ("offleash.eval.commands.merge", "merge pools of one model and setting, as several machines drew them"),
    "rejudge": ("offleash.eval.commands.rejudge", "judge the stored completions of a pool again: the verifier changed"),
    "recipes": ("offleash.train.commands.recipes", "list the recipes that ship with Offleash, or print one"),
    "init": ("offleash.train.commands.init", "copy one of these recipes into a file of your own"),
    "completion": ("offleash.train.commands.completion", "print a script that completes commands in your shell"),
}
"""Name -> (module with `main(argv) -> int`, one line for `offleash --help`)."""


def main(argv: list[str] | None = None) -> int:
    try:
        status = _run(sys.argv[1:] if argv is None else argv)
        sys.stdout.flush()  # a closed pipe is noticed here, not by the interpreter at its exit
    except BrokenPipeError:  # `offleash ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OffleashError as error:
        say(f"offleash: error: {error}", error=True)
        return 2
    except KeyboardInterrupt:
        say("offleash: interrupted; completed work is saved, run the same command to continue", error=True)
        return 130
    return status


def _run(argv: list[str]) -> int:
    if not argv or argv[0] in ("-h", "--help", "help"):
        say(_help())
        return 0 if argv else 2
    if argv[0] == "--version":
        say(f"offleash {version('offleash')}")
        return 0
    if argv[0] not in COMMANDS:
        say(f"offleash: no command {argv[0]!r}; choose one of {', '.join(COMMANDS)}", error=True)
        return 2
    return int(import_module(COMMANDS[argv[0]][0]).main(argv[1:]))


def _help() -> str:
    lines = [f"  {name:10} {text}" for name, (_, text) in COMMANDS.items()]
    usage = "usage: offleash COMMAND [...]\n       offleash --version"
    return "\n".join([usage, "", *lines, "", "`offleash COMMAND --help` describes a command."])


if __name__ == "__main__":
    sys.exit(main())
