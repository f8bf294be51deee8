"""Start a training run with Accelerate.

Runs `accelerate launch [LAUNCHER OPTIONS] -m offleash.train [TRAINING OPTIONS]` and ends with the status of training.
The launcher gets the options --config_file, --num_processes, --num_machines, --machine_rank, --main_process_ip,
--main_process_port, --gpu_ids and --mixed_precision, and everything before a `--` (`accelerate launch --help` lists its
options); training gets the rest. `offleash train -- --help` lists the training options: the keys of a recipe. Ctrl-C
and SIGTERM save a checkpoint after the current step; a second one ends at once.

examples:
    offleash train --config lab --seed 1                 a recipe that ships with Offleash (`offleash recipes`)
    offleash train --config mine.yaml --config variants/pass_at_k --output_dir runs/mine
    offleash train --config lab --resume
    offleash train --config_file recipes/accelerate/node_zero3.yaml --config models/dapo-7b
"""

import os
import sys
from itertools import islice

from offleash.eval.console import say
from offleash.train.recipe.catalogue import find_launcher_config, find_recipe

LAUNCHER = (
    *("--config_file", "--num_processes", "--num_machines", "--machine_rank", "--main_process_ip"),
    *("--main_process_port", "--gpu_ids", "--mixed_precision"),
)


def main(argv: list[str]) -> int:
    if not argv or argv[0] in ("-h", "--help"):
        say(f"usage: offleash train --config RECIPE [...]\n\n{(__doc__ or '').strip()}")
        return 0 if argv else 2
    command = launch_command(argv)
    sys.stdout.flush()
    return os.execv(command[0], command)


def launch_command(argv: list[str]) -> list[str]:
    """The command line that `offleash train` becomes. Raises ConfigError for a recipe that does not exist."""
    place = argv.index("--") if "--" in argv else 0
    launcher, training = argv[:place], []
    words = iter(argv[place + 1 :] if "--" in argv else argv)
    for word in words:
        name, equals, value = word.partition("=")
        if name == "--config":
            find_recipe(value if equals else (value := next(words, "")))
            training += [name, value]
        elif name == "--config_file":
            launcher += [name, find_launcher_config(value if equals else next(words, ""))]
        elif name in LAUNCHER:
            launcher += [word] if equals else [word, *islice(words, 1)]
        else:
            training.append(word)
    return [sys.executable, "-m", "offleash.train.accelerate_launch", *launcher, "-m", "offleash.train", *training]
