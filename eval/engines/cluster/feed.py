"""A Ray Data dataset that is appended to while it is read, so that one set of workers serves many calls.

Ray Data would start new workers, and load the model again, for every dataset: for each round of a stopping plan.
Here a single task reads rows as the driver adds them. Ray may run that task a second time, and relies on the same
blocks in the same order: so rows are numbered, and the task asks for them by number.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
import ray
from ray.data import Dataset, Datasource, ReadTask
from ray.data.block import BlockMetadata

AT_ONCE = 256


class Feed:
    """The driver's end: rows go in by `add`, come out of `dataset` one per block, and are kept until marked as done."""

    def __init__(self) -> None:
        # Both on the driver's machine: the loss of another machine cannot end them.
        here = {"ray.io/node-id": ray.get_runtime_context().get_node_id()}
        self._rows: Any = ray.remote(num_cpus=0, label_selector=here)(_Rows).remote()
        self._end = 0
        self.dataset: Dataset = ray.data.read_datasource(
            _Source(self._rows), override_num_blocks=1, num_cpus=0, label_selector=here
        )

    def add(self, rows: Sequence[bytes], done: Sequence[int] = ()) -> range:
        """Append rows and forget those that are `done`; the numbers of the new ones."""
        numbers = range(self._end, self._end + len(rows))
        self._end = numbers.stop
        self._rows.add.remote(dict(zip(numbers, rows, strict=True)), list(done))
        return numbers

    @property
    def count_worker(self) -> Callable[[], int]:
        """For a worker to call as it starts: the number of workers started since the last row was done."""
        return partial(_count_worker, self._rows)


class _Rows:
    """The actor that keeps the rows: it outlives the task that reads them."""

    def __init__(self) -> None:
        self.rows: dict[int, bytes] = {}
        self.end = self.started = 0
        self.changed = asyncio.Condition()

    async def add(self, rows: dict[int, bytes], done: Sequence[int]) -> None:
        async with self.changed:
            self.rows |= rows
            self.end += len(rows)
            for number in done:
                self.rows.pop(number, None)
                self.started = 0
            self.changed.notify_all()

    async def count_worker(self) -> int:
        self.started += 1
        return self.started

    async def take(self, start: int) -> list[tuple[int, bytes]]:
        """Rows from a number on, as soon as there are any; b"" for one that is done."""
        async with self.changed:
            await self.changed.wait_for(lambda: self.end > start)
            return [(i, self.rows.get(i, b"")) for i in range(start, min(self.end, start + AT_ONCE))]


class _Source(Datasource):
    def __init__(self, rows: Any) -> None:
        super().__init__()
        self.rows = rows

    def get_read_tasks(self, parallelism: int, *args: Any, **kwargs: Any) -> list[ReadTask]:
        rows = self.rows
        unknown = BlockMetadata(num_rows=None, size_bytes=None, input_files=None, exec_stats=None)
        return [ReadTask(lambda: _blocks(rows), unknown)]

    def estimate_inmemory_data_size(self) -> int | None:
        return None


def _blocks(rows: Any) -> Iterator[pa.Table]:
    start = 0
    while True:
        taken = ray.get(rows.take.remote(start))
        start += len(taken)
        for number, row in taken:
            yield pa.table({"number": pa.array([number]), "row": pa.array([row], pa.binary())})


def _count_worker(rows: Any) -> int:
    return int(ray.get(rows.count_worker.remote()))
