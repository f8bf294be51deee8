"""One engine inside a worker, fed by many concurrent calls so that its batch stays full, and the model it needs."""

import socket
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple

from offleash.eval.engines.base import Drawn, Engine, Request
from offleash.eval.engines.model import ModelSource, resolve_model
from offleash.eval.errors import ConfigError, EngineError, OffleashError, first_line
from offleash.eval.fingerprint import template_fingerprint
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


class SharedEngine:
    """One engine that many threads ask at once. It is loaded, and runs, in a thread of its own.

    `load` makes it, or raises; every request is answered with that error then, and with one that ends the engine later.
    """

    def __init__(self, load: Callable[[], Engine], sampling: Sampling) -> None:
        self.sampling, self.inbox = sampling, _Inbox()
        self._ready = threading.Event()
        threading.Thread(target=self._serve, args=(load,), daemon=True).start()
        self._ready.wait()

    def generate(self, requests: Iterable[Request]) -> Iterator[Drawn]:
        """Each request with its completions, as they finish. Raises EngineError if the engine has failed."""
        replies, asked = SimpleQueue[Drawn | str](), 0
        for request in requests:
            self.inbox.ask(request, replies)
            asked += 1
        for _ in range(asked):
            reply = replies.get()
            if isinstance(reply, str):
                raise EngineError(reply)
            yield reply

    def _serve(self, load: Callable[[], Engine]) -> None:
        try:
            engine = load()
            self._ready.set()
            while True:
                self.inbox.wait()
                for drawn in engine.generate(self.inbox, self.sampling):
                    if drawn is not None:
                        self.inbox.answer(drawn)
        except Exception as error:  # whatever it is, it has to reach the user: nobody reads a worker's terminal
            self.inbox.fail(worded(error))
            self._ready.set()


def check_starts(count: int, limit: int) -> None:
    """Raises EngineError if so many workers in a row were started for nothing: Ray itself would never stop."""
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
        self.asked: dict[tuple[int, int, int], list[SimpleQueue[Drawn | str]]] = {}
        self.failure = ""

    def ask(self, request: Request, replies: "SimpleQueue[Drawn | str]") -> None:
        """`replies` will get the completions, or what went wrong."""
        with self.changed:
            if self.failure:
                replies.put(self.failure)
                return
            self.asked.setdefault(_key(request), []).append(replies)
            self.waiting.append(request)
            self.changed.notify()

    def answer(self, drawn: Drawn) -> None:
        with self.changed:
            askers = self.asked[_key(drawn.request)]
            replies = askers.pop(0)
            if not askers:
                del self.asked[_key(drawn.request)]
        replies.put(drawn)

    def fail(self, reason: str) -> None:
        with self.changed:
            self.failure = reason
            asked = [replies for askers in self.asked.values() for replies in askers]
        for replies in asked:
            replies.put(reason)

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


def worded(error: Exception) -> str:
    """An error of this machine, in one line."""
    text = str(error) if isinstance(error, OffleashError) else f"{type(error).__name__}: {first_line(error, 300)}"
    return f"the worker on {socket.gethostname()}: {text}"


def _in_full(name: str) -> str:
    return str(Path(name).absolute()) if Path(name).is_dir() else name
