"""One engine inside a Ray actor, fed by many concurrent calls so that its batch stays full."""

import os
import pickle
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from offleash.eval.engines import load_engine
from offleash.eval.engines.base import Completion, Engine, Request
from offleash.eval.engines.model import ModelSource, resolve_model
from offleash.eval.errors import ConfigError, EngineError, OffleashError, first_line
from offleash.eval.fingerprint import template_fingerprint
from offleash.eval.registry import search_for_modules
from offleash.eval.sampling import Sampling
from offleash.recipes import EMBEDDED


class Model(NamedTuple):
    """What a worker needs to find the driver's model (absolute folders), and to verify that it is the same."""

    name: str
    revision: str | None
    tokenizer: str | None
    dtype: str
    end_ids: tuple[int, ...]
    weights: str
    template: str

    @classmethod
    def of(cls, source: ModelSource) -> "Model":
        tokenizer: Any = source.tokenizer
        own = tokenizer.name_or_path in (source.path, source.adapter)
        return cls(
            name=source.name if source.name in EMBEDDED else _in_full(source.name),
            revision=source.revision or None,
            tokenizer=None if own else _in_full(tokenizer.name_or_path),
            dtype=source.dtype,
            end_ids=source.end_ids,
            weights=source.weights,
            template=template_fingerprint(tokenizer),
        )

    def find(self) -> ModelSource:
        """The model as this machine has it. Raises ConfigError if it differs from the driver's."""
        found = resolve_model(self.name, revision=self.revision, tokenizer=self.tokenizer, dtype=self.dtype)
        for what, theirs, ours in (
            ("weights", found.weights, self.weights),
            ("tokenizer", template_fingerprint(found.tokenizer), self.template),
        ):
            if theirs != ours:
                raise ConfigError(
                    f"model {self.name!r} has different {what} here ({theirs[:24]}) than on the driver "
                    f"({ours[:24]}): copy it again, or use a folder that all machines share"
                )
        return replace(found, end_ids=self.end_ids)


class Worker:
    """What Ray Data builds once in each actor and then calls from several threads, a row at a time.

    An engine of one's own is looked for in the driver's working `folder` too, which this machine may share.
    """

    def __init__(
        self,
        engine: str,
        model: Model,
        context: int,
        sampling: Sampling,
        options: dict[str, Any],
        *,
        starts: Callable[[], int],
        limit: int,
        folder: str,
    ) -> None:
        # A worker that is killed must take all of vLLM with it: an engine in a process of its own would live on and
        # hold the memory that the next worker needs.
        os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        self.sampling, self.inbox = sampling, _Inbox()
        ready: Future[None] = Future()

        def load() -> Engine:
            _check_starts(starts(), limit)
            search_for_modules(folder)
            return load_engine(engine, model.find(), context=context, **options)

        threading.Thread(target=self._serve, args=(load, ready), daemon=True).start()
        ready.result()

    def __call__(self, batch: pa.Table) -> pa.Table:
        rows = batch["row"].to_pylist()
        answers = [pickle.dumps(self.inbox.ask(pickle.loads(row))) if row else b"" for row in rows]
        return pa.table({"number": batch["number"], "answer": pa.array(answers, pa.binary())})

    def _serve(self, load: Callable[[], Engine], ready: "Future[None]") -> None:
        """Load the engine and serve requests. After an error, every request is answered with that error."""
        try:
            engine = load()
            ready.set_result(None)
            while True:
                self.inbox.wait()
                for drawn in engine.generate(self.inbox, self.sampling):
                    if drawn is not None:
                        self.inbox.answer(*drawn)
        except Exception as error:  # whatever it is, it has to reach the user: nobody reads a worker's terminal
            self.inbox.fail(_worded(error))
            if not ready.done():
                ready.set_result(None)


def _check_starts(count: int, limit: int) -> None:
    if count > limit:
        raise EngineError(
            f"{count} workers were started without a single answer: they die while loading the model or sampling. "
            "The usual cause is memory; see the end of a worker's log in Ray's logs"
        )


class _Inbox:
    """Requests waiting for the engine. As an iterator it ends when none is waiting, and can be resumed."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.waiting: deque[Request] = deque()
        self.asked: dict[tuple[int, int, int], list[Future[list[Completion] | str]]] = {}
        self.failure = ""

    def ask(self, request: Request) -> list[Completion] | str:
        """The completions, or what went wrong."""
        future: Future[list[Completion] | str] = Future()
        with self.changed:
            if self.failure:
                return self.failure
            self.asked.setdefault(_key(request), []).append(future)
            self.waiting.append(request)
            self.changed.notify()
        return future.result()

    def answer(self, request: Request, completions: list[Completion]) -> None:
        with self.changed:
            futures = self.asked[_key(request)]
            future = futures.pop(0)
            if not futures:
                del self.asked[_key(request)]
        future.set_result(completions)

    def fail(self, reason: str) -> None:
        with self.changed:
            self.failure = reason
            asked = [future for futures in self.asked.values() for future in futures]
        for future in asked:
            future.set_result(reason)

    def wait(self) -> None:
        with self.changed:
            self.changed.wait_for(lambda: self.waiting)

    def __iter__(self) -> Iterator[Request]:
        return self

    def __next__(self) -> Request:
        if not self.waiting:
            raise StopIteration
        return self.waiting.popleft()


def _key(request: Request) -> tuple[int, int, int]:
    return request.problem, request.start, request.seed


def _worded(error: Exception) -> str:
    text = str(error) if isinstance(error, OffleashError) else f"{type(error).__name__}: {first_line(error, 300)}"
    return f"the worker on {socket.gethostname()}: {text}"


def _in_full(name: str) -> str:
    return str(Path(name).absolute()) if Path(name).is_dir() else name
