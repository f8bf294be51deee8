"""Work whose outcome, a result or an error, every rank learns.

An error on one rank only would leave the others waiting in their next collective, where nothing can reach them. So work
that may fail runs between collectives, and its outcome is exchanged. An error that was not exchanged ends the process
that met it, and the launcher ends the others.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NoReturn, TypeVar, cast

from accelerate.utils import broadcast_object_list, gather_object

from offleash.eval.errors import EngineError, OffleashError, first_line

S = TypeVar("S")
T = TypeVar("T")

BLOCK = 1024
"""Items that are sent to other ranks at once: completions may be long."""


class RemoteError(RuntimeError):
    """An error of another process that is not an OffleashError. A caller that may continue after it there may here."""


class Ranks:
    """The processes of a run. Every method is collective."""

    def __init__(self, accelerator: Any) -> None:
        self.accelerator = accelerator

    @property
    def is_main(self) -> bool:
        return bool(self.accelerator.is_main_process)

    @property
    def is_alone(self) -> bool:
        return bool(self.accelerator.num_processes == 1)

    def share(self, value: T) -> T:
        """The main process's value, on every rank."""
        if self.is_alone:
            return value
        box = [value]
        broadcast_object_list(box, from_process=0)
        return box[0]

    def on_main(self, work: Callable[[], T]) -> T | None:
        """Run `work` on the main process; its result there and None elsewhere. Its error is raised on every rank."""
        result, error = _outcome(work) if self.is_main else (None, None)
        told = self.share(self._portable(error))
        if error is not None or told is not None:
            _raise_everywhere(error or told)
        return result

    def from_main(self, work: Callable[[], T]) -> T:
        """Run `work` on the main process; its result, or its error, on every rank."""
        return cast(T, self.share(self.on_main(work)))

    def on_all(self, work: Callable[[], T], *, waits: bool) -> T:
        """Run `work` on every rank; this rank's result. An error on any rank is raised on every rank.

        `waits`: the ranks wait for each other inside `work`. One that fails there can tell nobody: it raises
        EngineError, which ends the run, and the launcher ends the processes that still wait. An error that every rank
        has been told inside of `work` is raised as it is.
        """
        if self.is_alone:
            return work()
        if waits:
            try:
                return work()
            except Exception as error:
                if isinstance(error, EngineError) or getattr(error, _TOLD, False):
                    raise
                raise EngineError(f"{self._words(error)}; the other processes wait for it, so the run ends") from error
        result, failure = _outcome(work)
        told = next((other for other in gather_object([self._portable(failure)]) if other is not None), None)
        if failure is not None or told is not None:
            _raise_everywhere(failure or told)
        return cast(T, result)

    def divide(self, items: Sequence[S], work: Callable[[Sequence[S]], Sequence[T]]) -> list[T]:
        """What `work` makes of items that every rank has: each works on a share, and all get all results, in order.

        Neighbours, which are often alike, go to different ranks. An error on any rank is raised on every rank.
        """
        count, rank = self.accelerator.num_processes, self.accelerator.process_index
        done = self.on_all(lambda: list(work(items[rank::count])), waits=False)
        shares = [done] if self.is_alone else gather_object([done])
        return [shares[place % count][place // count] for place in range(len(items))]

    def gathered(self, items: Sequence[T]) -> Iterator[list[T]]:
        """The items of all ranks on every rank, a block at a time; ranks may have different numbers of them."""
        each = -(-BLOCK // self.accelerator.num_processes)
        for start in range(0, max(gather_object([len(items)])), each):
            yield gather_object(list(items[start : start + each]))

    def led_by_main(
        self,
        lead: Callable[[Callable[[Sequence[S]], list[T]]], Any],
        work: Callable[[Sequence[S]], Sequence[T]],
    ) -> None:
        """Run `lead(help)` on the main process; the `help(items)` that it may call is `work` divided among all ranks.

        So the others do not wait for the whole of it in one collective. An error is raised on every rank.
        """
        if self.is_alone:
            lead(lambda items: list(work(items)))
            return

        def help_(items: Sequence[S]) -> list[T]:
            blocks = [items[start : start + BLOCK] for start in range(0, len(items), BLOCK)]
            return [result for block in blocks for result in self.divide(self.share(block), work)]

        def led() -> None:
            try:
                lead(help_)
            finally:
                self.share(None)

        block: Sequence[S] | None
        while not self.is_main and (block := self.share(None)) is not None:
            _outcome(partial(self.divide, block, work))  # the main process has the same error, and raises it below
        self.on_main(led)

    def _portable(self, error: Exception | None) -> OffleashError | RemoteError | None:
        """What can be sent to other processes: not every library's exception can be pickled."""
        if error is None or isinstance(error, OffleashError | RemoteError):
            return error
        return RemoteError(self._words(error))

    def _words(self, error: Exception) -> str:
        return f"process {self.accelerator.process_index}: {type(error).__name__}: {first_line(error)}"


_TOLD = "_offleash_told"
"""An attribute of errors that are raised on every rank."""


def _raise_everywhere(error: Exception | None) -> NoReturn:
    assert error is not None
    setattr(error, _TOLD, True)
    raise error


def _outcome(work: Callable[[], T]) -> tuple[T | None, Exception | None]:
    try:
        return work(), None
    except Exception as error:
        return None, error
