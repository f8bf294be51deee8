"""The launcher that `offleash train` becomes: Accelerate's, without its noise and with the exit status of training.

Read against Accelerate 1.15 (`commands/launch.py`): one process is waited for, and its status is in a
CalledProcessError; several are run by torchrun, whose ChildFailedError has the status of each. What a process had to
say it has said itself, once for all ranks (`train/__main__.py`); only a process that was killed leaves its line to us.
"""

import contextlib
import logging
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from types import FrameType
from typing import NoReturn

import psutil

from offleash.eval.console import say
from offleash.eval.errors import ConfigError, OffleashError, first_line
from offleash.train.__main__ import SAID

SIGNALS = "SIGHUP,SIGQUIT"
"""Those on which torchrun ends its processes. Not on Ctrl-C and SIGTERM: they save a checkpoint and end themselves."""


def main(argv: list[str]) -> int:
    signal.signal(signal.SIGINT, _pass_on)
    signal.signal(signal.SIGTERM, _ask_to_end)  # Accelerate would die and leave its one process alone
    logging.disable(logging.CRITICAL)  # of this process: which defaults were used, how the children ended
    try:
        with tempfile.TemporaryDirectory(prefix="offleash-") as said:
            os.environ[SAID] = said
            os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # warnings of C++ code, in every process
            return _launch(argv)
    except OffleashError as error:
        say(f"offleash: error: {error}", error=True)
        return 2
    except KeyboardInterrupt:
        say("offleash: interrupted before training began", error=True)
        return 130
    finally:
        logging.disable(logging.NOTSET)


def _launch(argv: list[str]) -> int:
    from accelerate.commands.launch import launch_command, launch_command_parser
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    parser = launch_command_parser()
    parser.error = _refuse
    arguments = parser.parse_args(argv)
    arguments.signals_to_handle = SIGNALS  # one of torchrun's, which Accelerate passes on
    try:
        launch_command(arguments)
    except subprocess.CalledProcessError as error:
        return reported([error.returncode])
    except ChildFailedError as error:
        failures = sorted(error.failures.values(), key=lambda failure: failure.timestamp)
        return reported([failure.exitcode for failure in failures])
    except SignalException as error:
        return reported([-error.sigval])
    except (ImportError, OSError, ValueError, KeyError, TypeError) as error:  # what Accelerate raises for its settings
        raise ConfigError(f"accelerate cannot launch this: {first_line(error)}") from error
    return 0


def reported(codes: Iterable[int]) -> int:
    """The exit status for the codes of processes that failed, in the order of their ends; negative is a signal.

    The launcher ends the others of one that failed (SIGTERM), and others fail because one is gone: our own statuses
    come first, then whatever failed first.
    """
    codes = list(codes)
    ours = [status for status in (130, 2) if status in codes]
    first = [*ours, *(code for code in codes if code != -signal.SIGTERM), *codes][0]
    if first >= 0:
        return first
    name = signal.Signals(-first).name
    hint = " (out of memory?)" if name == "SIGKILL" else ""
    say(f"offleash: error: a training process was killed by {name}{hint}: add --resume to continue", error=True)
    return 128 - first


def _refuse(message: str) -> NoReturn:
    raise ConfigError(f"{message} (`accelerate launch --help` lists the launcher's options)")


def _pass_on(number: int, frame: FrameType | None) -> None:
    """The terminal sends Ctrl-C to our group of processes. Those of torchrun are in groups of their own."""
    children = psutil.Process().children()
    if not children:
        raise KeyboardInterrupt
    for child in children:
        with contextlib.suppress(OSError):  # it has just ended
            if os.getpgid(child.pid) != os.getpgid(0):
                os.kill(child.pid, number)


def _ask_to_end(number: int, frame: FrameType | None) -> None:
    """A scheduler that takes the machine back, or `kill`: as Ctrl-C. The second time, training is not asked."""
    signal.signal(signal.SIGTERM, _end_children)
    children = psutil.Process().children()
    if not children:
        raise KeyboardInterrupt
    for child in children:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.send_signal(signal.SIGINT)


def _end_children(number: int, frame: FrameType | None) -> None:
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess):
            child.terminate()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
