"""offleash train: start a training run with Accelerate.

    offleash train --config recipes/lab.yaml --seed 1
    offleash train --config lab --resume
    offleash train --config_file recipes/accelerate/node_zero3.yaml -- --config recipes/models/dapo-7b.yaml

Runs `accelerate launch [LAUNCHER OPTIONS] -m offleash.train [TRAINING OPTIONS]`. Options before `--` go to the launcher
(`accelerate launch --help`: --config_file, --num_processes, ...), those after it to training. Without `--` all options
go to training. `offleash train -- --help` lists the training options: the keys of a recipe.
"""

import os
import sys

HELP = ("-h", "--help")


def main(argv: list[str]) -> int:
    if not argv or argv[0] in HELP:
        print((__doc__ or "").partition(": ")[2].strip())
        return 0 if argv else 2
    command = launch_command(argv)
    sys.stdout.flush()
    return os.execv(command[0], command)


def launch_command(argv: list[str]) -> list[str]:
    """The command line that `offleash train` runs."""
    place = argv.index("--") if "--" in argv else None
    launcher, training = ([], argv) if place is None else (argv[:place], argv[place + 1 :])
    return [sys.executable, "-m", "accelerate.commands.launch", *launcher, "-m", "offleash.train", *training]
