"""Train the runs of a sweep: each in its own process, several at a time. Finished runs are not repeated.

On a CPU a run is a fork of this process, which has imported everything: a run of half a minute would otherwise spend a
third of it on imports. With an accelerator, whose state does not survive a fork, and with `--launch` it is a new one.

The first run draws the base pool while the others wait, because all of them share it. Interrupting the sweep stops its
runs; the same command resumes them from their checkpoints. kill -9 stops them too, except for workers of a launcher
(`--launch`): those go on and hold the lock of their run's folder until they end.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

from tqdm import tqdm

from offleash.eval.console import say
from offleash.eval.errors import ConfigError
from offleash.eval.lock import hold
from offleash.eval.report.numbers import share
from offleash.eval.verify.sandbox.limits import die_with_parent
from offleash.train import __main__ as training
from offleash.train.variants.results import read_budget, read_run
from offleash.train.variants.runs import Run, check_unchanged, drop_bars, keep_numbers, record_failure, record_start

ONE_PROCESS = (sys.executable,)
"""The command before `-m offleash.train`. One process needs no `accelerate launch`."""
SIGNALS = (signal.SIGTERM, signal.SIGINT)
LAST_LINES = 12
LOOK_EVERY = 0.5
PATIENCE = 10.0  # seconds from SIGTERM to SIGKILL


def run_sweep(
    runs: Sequence[Run], out: Path, launch: Sequence[str] = ONE_PROCESS, jobs: int = 1, numbers_only: bool = False
) -> list[Run]:
    """Train the runs that have not ended and return those that failed.

    `numbers_only`: of a run that has ended its numbers and its final model are kept, not its checkpoints and samples.
    Raises ConfigError before anything starts if the settings of a run changed or `launch` is not a command.
    """
    if shutil.which(launch[0]) is None:
        raise ConfigError(f"--launch: command not found: {launch[0]!r}")
    for run in runs:
        check_unchanged(run)
    waiting = [run for run in runs if not run.has_ended]
    if ended := len(runs) - len(waiting):
        _say(f"{ended} of {len(runs)} runs have ended already")
    thinned: set[Run] = set()
    with _locked(out) as lock, _Processes(lock, launch) as processes, _bar(len(runs), ended) as bar:
        while waiting or processes.running:
            while waiting and len(processes.running) < (jobs if any(run.has_begun for run in runs) else 1):
                processes.start(waiting.pop(0))
            time.sleep(LOOK_EVERY)
            bar.update(processes.collect())
            if numbers_only:
                thinned |= _thin(run for run in runs if run not in thinned and run not in processes.running)
            bar.set_postfix_str(", ".join(run.name for run in processes.running), refresh=False)
            bar.refresh()
        return processes.failed


class _Processes:
    """The running processes. Leaving the context by an error or an interrupt stops them."""

    def __init__(self, lock: int, launch: Sequence[str]) -> None:
        self.lock, self.launch = lock, launch
        self.running: dict[Run, tuple[Fork | subprocess.Popen[bytes], float]] = {}
        self.failed: list[Run] = []

    def __enter__(self) -> "_Processes":
        self._before = signal.signal(signal.SIGTERM, _interrupt)
        return self

    def __exit__(self, *error: object) -> None:
        self._stop()
        signal.signal(signal.SIGTERM, self._before)

    def start(self, run: Run) -> None:
        record_start(run)
        process = Fork(run) if self.launch == ONE_PROCESS and not _has_accelerator() else self._launched(run)
        self.running[run] = (process, time.monotonic())
        _say(f"{run.name}: started ({run.log})")

    def _launched(self, run: Run) -> "subprocess.Popen[bytes]":
        with run.log.open("ab") as log:
            return subprocess.Popen(
                [*self.launch, "-m", "offleash.train", *run.words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # so that a launcher and its workers can be stopped together
                pass_fds=[self.lock],  # a run that outlives the sweep keeps the lock
                preexec_fn=die_with_parent,
            )

    def collect(self) -> int:
        """Report every run that is over, and return their number."""
        over = [run for run, (process, _) in self.running.items() if process.poll() is not None]
        for run in over:
            process, start = self.running.pop(run)
            took = _clock(time.monotonic() - start)
            assert process.returncode is not None
            if process.returncode == 0 and run.has_ended:
                last = read_run(run).last
                _say(f"{run.name}: ended in {took}: pass@1 {share(last['pass_at_1'])}, NSCR {share(last['nscr'])}")
            else:
                self._fail(run, process.returncode, took)
        return len(over)

    def _fail(self, run: Run, status: int, took: str) -> None:
        lines = _tail(run.log)
        if not status:
            lines.append("error: the last measurement failed: remove the folder to train it again")
        record_failure(run, status, lines)
        self.failed.append(run)
        _say(f"{run.name}: FAILED after {took} with status {status}; the other runs continue. Last lines:")
        _say("\n".join(f"    {line}" for line in lines))

    def _stop(self) -> None:
        processes = [process for process, _ in self.running.values()]
        for word in (signal.SIGTERM, signal.SIGKILL):
            for process in processes:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, word)
            deadline = time.monotonic() + PATIENCE
            while any(process.poll() is None for process in processes) and time.monotonic() < deadline:
                time.sleep(0.05)


class Fork:
    """A run in a copy of this process; `pid`, `poll` and `returncode` are those of a `Popen`."""

    def __init__(self, run: Run) -> None:
        from offleash.train import grpo  # noqa: F401  imported here, once for all forks

        sys.stdout.flush()
        sys.stderr.flush()
        self.returncode: int | None = None
        self.pid = os.fork()
        if not self.pid:
            _train(run)

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode


def _train(run: Run) -> NoReturn:
    """In the fork: what `python -m offleash.train` does. Never returns into the sweep's code."""
    status = 1
    try:
        die_with_parent()
        os.setsid()
        for number in SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        with run.log.open("ab") as log, Path(os.devnull).open("rb") as nothing:
            for source, target in ((nothing, 0), (log, 1), (log, 2)):
                os.dup2(source.fileno(), target)
        sys.stdout, sys.stderr = (os.fdopen(number, "w", 1, closefd=False) for number in (1, 2))
        sys.argv[1:] = run.words
        status = training.main()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(status)


def _has_accelerator() -> bool:
    import torch

    return bool(torch.accelerator.is_available())


def _thin(runs: Iterable[Run]) -> set[Run]:
    """The runs that have ended, without their checkpoints and samples."""
    ended = {run for run in runs if run.has_ended}
    for run in ended:
        keep_numbers(run, read_budget(run.folder, read_run(run).steps[-1])._asdict())
    return ended


@contextlib.contextmanager
def _locked(out: Path) -> Iterator[int]:
    """Only one sweep at a time in a folder. The runs inherit the lock."""
    lock = hold(out, f"another sweep, or one of its runs, is running in {out}: wait for it or stop it")
    try:
        yield lock
    finally:
        os.close(lock)


def _bar(total: int, done: int) -> tqdm:
    tqdm.monitor_interval = 0  # its thread is not fork-safe
    return tqdm(total=total, initial=done, desc="runs", smoothing=0, dynamic_ncols=True, disable=None)


def _say(text: str) -> None:
    say(f"offleash: {text}" if not text.startswith(" ") else text, error=True)


def _tail(path: Path) -> list[str]:
    """The last lines that are not empty, without progress bars."""
    lines = [line.rsplit("\r", 1)[-1].rstrip() for line in path.read_text(errors="replace").split("\n")]
    return [line for line in drop_bars(lines) if line][-LAST_LINES:]


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}" if minutes >= 60 else f"{minutes}:{rest:02}"


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
