"""Work whose outcome, a result or an error, every rank learns.

An error on one rank only would leave the others waiting forever in their next collective.
"""

from collections.abc import Callable
from typing import Any, TypeVar, cast

from accelerate.utils import broadcast_object_list, gather_object

from offleash.eval.errors import EngineError, MonitorError, OffleashError, first_line

T = TypeVar("T")


class Ranks:
    """The processes of a run. Every method is collective."""

    def __init__(self, accelerator: Any) -> None:
        self.accelerator = accelerator

    @property
    def is_main(self) -> bool:
        return bool(self.accelerator.is_main_process)

    def share(self, value: T) -> T:
        """The main process's value, on every rank."""
        if self.accelerator.num_processes == 1:
            return value
        box = [value]
        broadcast_object_list(box, from_process=0)
        return box[0]

    def on_main(self, work: Callable[[], T]) -> T | None:
        """Run `work` on the main process; its result there and None elsewhere. Its error is raised on every rank."""
        result, error = _outcome(work) if self.is_main else (None, None)
        told = self.share(self._portable(error))
        if error is not None or told is not None:
            raise cast(Exception, error or told)
        return result

    def from_main(self, work: Callable[[], T]) -> T:
        """Run `work` on the main process; its result, or its error, on every rank."""
        return cast(T, self.share(self.on_main(work)))

    def on_all(self, work: Callable[[], T], *, waits: bool) -> T:
        """Run `work` on every rank; this rank's result. An error on any rank is raised on every rank.

        `waits`: the ranks wait for each other inside `work`. One that fails there can tell nobody: it raises
        EngineError, which ends the run, and the launcher ends the processes that still wait.
        """
        if self.accelerator.num_processes == 1:
            return work()
        if waits:
            try:
                return work()
            except OffleashError:
                raise
            except Exception as error:
                raise EngineError(f"{self._words(error)}; the other processes wait for it, so the run ends") from error
        result, failure = _outcome(work)
        told = next((other for other in gather_object([self._portable(failure)]) if other is not None), None)
        if failure is not None or told is not None:
            raise cast(Exception, failure or told)
        return cast(T, result)

    def _portable(self, error: Exception | None) -> OffleashError | None:
        """What can be sent to other processes: not every library's exception can be pickled."""
        return error if error is None or isinstance(error, OffleashError) else MonitorError(self._words(error))

    def _words(self, error: Exception) -> str:
        return f"process {self.accelerator.process_index}: {type(error).__name__}: {first_line(error)}"


def _outcome(work: Callable[[], T]) -> tuple[T | None, Exception | None]:
    try:
        return work(), None
    except Exception as error:
        return None, error
