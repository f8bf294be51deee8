"""An observer may fail, and the run goes on: its error becomes one loud line and a count, `monitor/failed`.

A broken verifier and an engine without the weights in training still end the run: their numbers are worse than none.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import TypeVar

from offleash.callbacks import tags
from offleash.callbacks.policy.trainer_protocol import PolicyTrainer
from offleash.callbacks.trackers import Media, Trackers
from offleash.eval.console import say
from offleash.eval.errors import EngineError, VerifyError, first_line

T = TypeVar("T")

FATAL: tuple[type[Exception], ...] = (EngineError, VerifyError)


def run_observer(trainer: PolicyTrainer) -> "Observer":
    """The trainer's Observer: all callbacks of a run share one count."""
    found: Observer | None = getattr(trainer, "offleash_observer", None)
    if found is None:
        found = trainer.offleash_observer = Observer(trainer)  # type: ignore[attr-defined]
    return found


class Observer:
    """Runs what observes a run, and hands its numbers to the trackers."""

    def __init__(self, trainer: PolicyTrainer) -> None:
        self.trainer = trainer
        self.trackers = Trackers(trainer)
        self.failed = 0
        """Observations that failed since the run was started or resumed."""
        self._times: Counter[tuple[str, str]] = Counter()

    def attempt(
        self, what: str, step: int, work: Callable[[], T], fatal: tuple[type[Exception], ...] = FATAL
    ) -> T | None:
        """The result of `work`, None if it failed; `what` completes the sentence "step 3 ...".

        Work that is collective must fail on every rank or on none: `policy.ranks` sees to that.
        """
        try:
            return work()
        except fatal:
            raise
        except Exception as error:
            self.failed += 1
            self._say(what, step, error)
        for destination in self.trackers.destinations():
            with suppress(Exception):  # it may be the tracker that failed
                destination.scalars({tags.MONITOR_FAILED.tag: float(self.failed)}, step)
        return None

    def scalars(self, metrics: Mapping[str, float], step: int) -> None:
        """To every tracker; one that is down does not keep the numbers from the others."""
        for destination in self.trackers.destinations():
            self.attempt(f"was not reported to {destination.name}", step, partial(destination.scalars, metrics, step))

    def media(self, made: Callable[[], Media], step: int) -> None:
        """The figure and the table of a step to every tracker; nothing is drawn if there is none."""
        destinations = list(self.trackers.destinations())
        if not destinations or (media := self.attempt("has no figure and table", step, made)) is None:
            return
        for destination in destinations:
            what = f"has no figure and table in {destination.name}"
            self.attempt(what, step, partial(destination.media, media, step))

    def alert(self, title: str, text: str, step: int) -> None:
        self.attempt("raised no alert", step, partial(self.trackers.alert, title, text))

    def _say(self, what: str, step: int, error: Exception) -> None:
        """A tracker that is down fails at every step: the line is printed the 1st, 2nd, 4th, 8th, ... time."""
        key = what, type(error).__name__
        self._times[key] += 1
        times = self._times[key]
        if self.trainer.accelerator.is_main_process and times & (times - 1) == 0:
            again = f" ({times} times so far)" if times > 1 else ""
            reason = f"{type(error).__name__}: {first_line(error)}"
            say(f"offleash: WARNING: step {step} {what}: {reason}{again}. Training goes on")
