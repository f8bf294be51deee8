"""A Ray Data source that is appended to while it is read, so that one set of workers serves many rounds and many pools.

Ray Data would start new workers, and load the model again, for every dataset: for each round of a stopping plan, for
each pool. Here a single read task passes on pieces of work, a block each, as the driver adds them. Ray may run that
task a second time, and relies on the same blocks in the same order: so pieces are numbered, and it asks for them by
number.
"""

import asyncio
import pickle
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import ray
from ray.data import Dataset, Datasource, ReadTask
from ray.data.block import BlockMetadata

AT_ONCE = 256


class Feed:
    """The driver's end: work goes in by `add`, comes out of `dataset` one piece per block, and is kept until done."""

    def __init__(self) -> None:
        # Both on the driver's machine: the loss of another machine cannot end them.
        here = {"ray.io/node-id": ray.get_runtime_context().get_node_id()}
        self._board: Any = ray.remote(num_cpus=0, label_selector=here)(_Board).remote()
        self._end = 0
        self.dataset: Dataset = ray.data.read_datasource(
            _Source(self._board), override_num_blocks=1, num_cpus=0, label_selector=here
        )

    def add(self, pieces: Sequence[bytes], done: Sequence[int] = ()) -> range:
        """Append pieces of work and forget those that are `done`; the numbers of the new ones."""
        numbers = range(self._end, self._end + len(pieces))
        self._end = numbers.stop
        self._board.add.remote(dict(zip(numbers, pieces, strict=True)), list(done))
        return numbers

    def publish(self, number: int, job: bytes) -> None:
        """What all pieces of one job share, for workers to fetch once. The one before is forgotten."""
        ray.get(self._board.publish.remote(number, job))

    @property
    def notices(self) -> "Notices":
        return Notices(self._board)


class Notices:
    """A worker's end of the feed, beside the rows that it is given."""

    def __init__(self, board: Any) -> None:
        self._board = board

    def count_start(self) -> int:
        """To be called by a worker as it starts: the number of workers started since the last piece was done."""
        return int(ray.get(self._board.count_start.remote()))

    def job(self, number: int) -> Any:
        """What was published; None if there is another job by now, and nobody waits for this one."""
        found = ray.get(self._board.job.remote(number))
        return None if found is None else pickle.loads(found)


class _Board:
    """The actor that keeps the work: it outlives the task that reads it."""

    def __init__(self) -> None:
        self.pieces: dict[int, bytes] = {}
        self.jobs: dict[int, bytes] = {}
        self.end = self.started = 0
        self.changed = asyncio.Condition()

    async def add(self, pieces: dict[int, bytes], done: Sequence[int]) -> None:
        async with self.changed:
            self.pieces |= pieces
            self.end += len(pieces)
            for number in done:
                self.pieces.pop(number, None)
                self.started = 0
            self.changed.notify_all()

    async def publish(self, number: int, job: bytes) -> None:
        self.jobs = {number: job}

    async def job(self, number: int) -> bytes | None:
        return self.jobs.get(number)

    async def count_start(self) -> int:
        self.started += 1
        return self.started

    async def take(self, start: int) -> list[tuple[int, bytes]]:
        """Pieces from a number on, as soon as there are any; b"" for one that is done."""
        async with self.changed:
            await self.changed.wait_for(lambda: self.end > start)
            return [(i, self.pieces.get(i, b"")) for i in range(start, min(self.end, start + AT_ONCE))]


class _Source(Datasource):
    def __init__(self, board: Any) -> None:
        super().__init__()
        self.board = board

    def get_read_tasks(self, parallelism: int, *args: Any, **kwargs: Any) -> list[ReadTask]:
        board = self.board
        unknown = BlockMetadata(num_rows=None, size_bytes=None, input_files=None, exec_stats=None)
        return [ReadTask(lambda: _blocks(board), unknown)]

    def estimate_inmemory_data_size(self) -> int | None:
        return None


def _blocks(board: Any) -> Iterator[pa.Table]:
    start = 0
    while True:
        taken = ray.get(board.take.remote(start))
        start += len(taken)
        for number, piece in taken:
            yield pa.table({"number": pa.array([number]), "piece": pa.array([piece], pa.binary())})
