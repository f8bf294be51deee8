"""One process of a training run: `accelerate launch -m offleash.train --config recipes/lab.yaml`."""

import hashlib
import logging
import os
import sys
import traceback
from pathlib import Path

from offleash.eval.console import say
from offleash.eval.secrets import hide_in_flags

SAID = "OFFLEASH_SAID"
"""Set by `offleash train`: a folder in which processes note what they have printed, so that ranks do not repeat it."""


def main() -> int:
    try:
        return _train()
    except KeyboardInterrupt as error:
        saved = str(error) or "nothing was saved since the last checkpoint"
        _say_once(f"offleash: interrupted; {saved}: add --resume to continue")
        return 130


def _train() -> int:
    from offleash.eval.errors import OffleashError, first_line
    from offleash.train.grpo import train
    from offleash.train.preflight.installation import report_old_locks
    from offleash.train.recipe.config import parse_recipe

    # preflight/launch.py reports processes that were launched and do not join.
    logging.getLogger("transformers.training_args").addFilter(lambda record: "parallel_mode" not in str(record.msg))
    report_old_locks()
    argv, sys.argv[1:] = sys.argv[1:], hide_in_flags(sys.argv[1:])  # trackers record the command line
    try:
        train(parse_recipe(argv))
    except OffleashError as error:
        _say_once(f"offleash: error: {error}")
        return 2
    except Exception as error:  # not left to the interpreter, which would print secrets
        say(traceback.format_exc(), error=True)
        if (rank := os.environ.get("RANK")) is not None:
            _say_once(f"offleash: error: process {rank}: {type(error).__name__}: {first_line(error)}")
        return 1
    return 0


def _say_once(text: str) -> None:
    """Every rank meets the same error; the first to come prints it."""
    if folder := os.environ.get(SAID):
        try:
            Path(folder, hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()).touch(exist_ok=False)
        except FileExistsError:
            return
        except OSError:  # the launcher and its folder are gone
            pass
    say(text, error=True)


if __name__ == "__main__":
    sys.exit(main())
