"""offleash train: start a training run with Accelerate.

    offleash train --config recipes/lab.yaml --seed 1
    offleash train --config lab --resume
    offleash train --config_file recipes/accelerate/node_zero3.yaml --config recipes/models/dapo-7b.yaml

Runs `accelerate launch [LAUNCHER OPTIONS] -m offleash.train [TRAINING OPTIONS]`. The launcher gets the options
--config_file, --num_processes, --num_machines, --machine_rank, --main_process_ip, --main_process_port, --gpu_ids and
--mixed_precision, and everything before a `--` (`accelerate launch --help` lists its options); training gets the rest.
`offleash train -- --help` lists the training options: the keys of a recipe.
"""

import os
import signal
import sys
from itertools import islice

from offleash.eval.console import say
from offleash.train.__main__ import LAUNCHER_IGNORES

LAUNCHER = (
    *("--config_file", "--num_processes", "--num_machines", "--machine_rank", "--main_process_ip"),
    *("--main_process_port", "--gpu_ids", "--mixed_precision"),
)


def main(argv: list[str]) -> int:
    if not argv or argv[0] in ("-h", "--help"):
        say((__doc__ or "").partition(": ")[2].strip())
        return 0 if argv else 2
    command = launch_command(argv)
    sys.stdout.flush()
    # The launcher would end with a traceback, or kill processes that are saving a checkpoint.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signals = {LAUNCHER_IGNORES: "1", "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGTERM,SIGHUP,SIGQUIT"}
    return os.execve(command[0], command, os.environ | signals)


def launch_command(argv: list[str]) -> list[str]:
    """The command line that `offleash train` runs."""
    place = argv.index("--") if "--" in argv else 0
    launcher, training = argv[:place], []
    words = iter(argv[place + 1 :] if "--" in argv else argv)
    for word in words:
        if word.partition("=")[0] not in LAUNCHER:
            training.append(word)
        else:
            launcher += [word] if "=" in word else [word, *islice(words, 1)]
    return [sys.executable, "-m", "accelerate.commands.launch", "--quiet", *launcher, "-m", "offleash.train", *training]
