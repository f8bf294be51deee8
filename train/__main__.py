"""One process of a training run: `accelerate launch -m offleash.train --config recipes/lab.yaml`."""

import os
import signal
import sys
import traceback

from offleash.eval.console import say
from offleash.eval.secrets import hide_in_flags

LAUNCHER_IGNORES = "OFFLEASH_LAUNCHER_IGNORES_SIGINT"
"""Set by `offleash train`, whose launcher ignores Ctrl-C: the training processes decide when they end."""


def main() -> int:
    if os.environ.get(LAUNCHER_IGNORES):  # and this process has inherited it
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return _train()
    except KeyboardInterrupt as error:
        saved = str(error) or "nothing was saved since the last checkpoint"
        say(f"offleash: interrupted; {saved}: add --resume to continue", error=True)
        return 130


def _train() -> int:
    from offleash.eval.errors import OffleashError
    from offleash.train.grpo import train
    from offleash.train.preflight.installation import report_old_locks
    from offleash.train.recipe.config import parse_recipe

    report_old_locks()
    argv, sys.argv[1:] = sys.argv[1:], hide_in_flags(sys.argv[1:])  # trackers record the command line
    try:
        train(parse_recipe(argv))
    except OffleashError as error:
        say(f"offleash: error: {error}", error=True)
        return 2
    except Exception:  # not left to the interpreter, which would print secrets
        say(traceback.format_exc(), error=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
