"""Work of the main process whose outcome, a result or an error, every rank learns.

An error on one rank only would leave the others waiting forever in their next collective.
"""

from collections.abc import Callable
from typing import Any, TypeVar, cast

from accelerate.utils import broadcast_object_list

from offleash.eval.errors import OffleashError

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
        result, error = None, None
        if self.is_main:
            try:
                result = work()
            except (OffleashError, OSError) as caught:
                error = caught
        if (failure := self.share(error)) is not None:
            raise failure
        return result

    def from_main(self, work: Callable[[], T]) -> T:
        """Run `work` on the main process; its result, or its error, on every rank."""
        return cast(T, self.share(self.on_main(work)))
