"""The `offleash` command: finds the subcommand and turns errors into one line and an exit status."""

import os
import sys
from importlib import import_module

from offleash.eval.errors import OffleashError

COMMANDS: dict[str, tuple[str, str]] = {
    "tasks": ("offleash.eval.commands.tasks", "list the tasks, show problems of one, check its gold answers"),
    "sample": ("offleash.eval.commands.sample", "draw completions of a model on tasks and verify them: a pool"),
    "score": ("offleash.eval.commands.score", "perplexity and token entropy of a pool or of traces under any model"),
    "compare": (
        "offleash.eval.commands.compare",
        "what a policy lost and gained against its base: tables, files, HTML",
    ),
    "variants": ("offleash.train.commands.variants", "exploration variants against plain and controls, over seeds"),
    "pairs": ("offleash.eval.commands.pairs", "the paper's model pairs: list them, print the commands to measure one"),
    "check": ("offleash.train.commands.check", "look a training recipe over: data, model, memory, hours, money"),
    "doctor": ("offleash.train.commands.doctor", "what is installed here, what does not work together, and the fix"),
    "import": ("offleash.eval.commands.import_samples", "make a pool of samples that another tool drew"),
    "export": ("offleash.eval.commands.export_samples", "write a pool as a Hugging Face dataset, JSONL or parquet"),
}
"""Name -> (module with `main(words) -> int`, one line for `offleash --help`)."""


def main(words: list[str] | None = None) -> int:
    words = sys.argv[1:] if words is None else words
    if not words or words[0] in ("-h", "--help", "help"):
        print("usage: offleash COMMAND [...]\n\n" + "\n".join(f"  {n:10} {text}" for n, (_, text) in COMMANDS.items()))
        print("\noffleash COMMAND --help explains one. Training: accelerate launch -m offleash.train --help")
        return 0 if words else 2
    if words[0] not in COMMANDS:
        print(f"offleash: no command {words[0]!r}; there are: {', '.join(COMMANDS)}", file=sys.stderr)
        return 2
    try:
        return int(import_module(COMMANDS[words[0]][0]).main(words[1:]))
    except OffleashError as error:
        print(f"offleash: error: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # `offleash ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except KeyboardInterrupt:
        print("offleash: interrupted; what was written is whole, the same command continues", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
