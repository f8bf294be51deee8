"""The retry policy of every request to an OpenAI-compatible server, shared by the engine and the judge.

A failure that another try may cure (no connection, a timeout, a busy server, an unusable reply) is tried again after
pauses that double, with jitter, and that are at least what a Retry-After header asks for. Whatever goes wrong with a
reply is such a failure: a server that sends nonsense must not end the thread that asked. This is `httpx` and one loop
rather than the `openai` SDK, which retries neither unusable replies nor the same statuses: the loop would remain.
"""

import concurrent.futures
import json
import os
import random
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from offleash.eval.errors import ConfigError, first_line
from offleash.eval.http_exchange import HttpExchange, Reply

T = TypeVar("T")
TRANSIENT_STATUSES = {408, 409, 425, 429, 500, 502, 503, 504, 529}
LONGEST_PAUSE = 60.0
REPLY_BYTES = 16_000_000
"""The largest reply, unpacked, unless a request says otherwise."""


class RequestFailed(Exception):
    """No usable reply after `attempts` tries; `transient` says that a later one may succeed."""

    def __init__(self, reason: str, *, transient: bool = True, retry_after: float = 0.0) -> None:
        super().__init__(reason)
        self.transient, self.retry_after, self.attempts = transient, retry_after, 1


class RetryingClient:
    """Requests below `url` from up to `concurrency` threads, each tried up to `attempts` times.

    `timeout` is how many seconds one try may take from connecting to the last byte of its reply; none starts more than
    `deadline` seconds after the first. The API key is read from the environment variable OPENAI_API_KEY, if it is set.
    """

    def __init__(
        self,
        url: str,
        *,
        attempts: int,
        timeout: float,
        first_pause: float = 1.0,
        deadline: float | None = None,
        concurrency: int = 1,
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise ConfigError(f"a server's URL must start with http:// or https://, got {url!r}")
        self.url, self.attempts, self.first_pause, self.deadline = url.rstrip("/"), attempts, first_pause, deadline
        self._closed = threading.Event()
        key = os.environ.get("OPENAI_API_KEY")
        self._http = HttpExchange(
            timeout=timeout,
            connections=concurrency,
            headers={"Authorization": f"Bearer {key}"} if key else {},
        )

    def request(
        self,
        path: str,
        read: Callable[[Any], T],
        body: Any = None,
        wait: Callable[[float], bool | None] | None = None,
        limit: int = REPLY_BYTES,
    ) -> T:
        """Post `body` (get, without one) and return what `read` makes of the reply's JSON. Raises RequestFailed.

        `read` raises RequestFailed, or anything else, for a reply that cannot be used. `wait` pauses between tries and
        returns True to give up; by default that is when the client is closed. `limit`: bytes of the largest reply.
        """
        wait, start = wait or self._closed.wait, time.monotonic()
        for attempt in range(self.attempts):
            try:
                return self._try(path, read, body, limit)
            except RequestFailed as failure:
                failure.attempts += attempt
                backoff = self.first_pause * 2**attempt * (0.5 + random.random())
                pause = min(max(backoff, failure.retry_after), LONGEST_PAUSE)
                late = self.deadline is not None and time.monotonic() + pause > start + self.deadline
                if not failure.transient or failure.attempts == self.attempts or late or wait(pause):
                    raise
        raise AssertionError("unreachable")

    def close(self) -> None:
        self._closed.set()
        self._http.close()

    def _try(self, path: str, read: Callable[[Any], T], body: Any, limit: int) -> T:
        try:
            reply = self._http.send("GET" if body is None else "POST", f"{self.url}/{path}", body, limit)
        except concurrent.futures.CancelledError as error:
            raise RequestFailed("the client was closed", transient=False) from error
        except Exception as error:
            raise RequestFailed(f"{type(error).__name__}: {first_line(error)}") from error
        if 200 <= reply.status < 300:
            return _read(reply, read)
        after = reply.headers.get("retry-after", "")
        raise RequestFailed(
            f"HTTP {reply.status}: {_message(reply)}",
            transient=reply.status in TRANSIENT_STATUSES,
            retry_after=float(after) if after.isdecimal() else 0.0,
        )


def _read(reply: Reply, read: Callable[[Any], T]) -> T:
    try:
        return read(json.loads(reply.content))
    except RequestFailed:
        raise
    except Exception as error:
        shown = _start(reply)[:80]
        raise RequestFailed(f"the server's reply cannot be read ({type(error).__name__}): {shown!r}") from error


def _start(reply: Reply) -> str:
    return reply.content[:1000].decode("utf-8", "replace")


def _message(reply: Reply) -> str:
    try:
        error = json.loads(reply.content)["error"]
        text = str(error["message"] if isinstance(error, dict) else error)
    except (ValueError, LookupError, TypeError, RecursionError):
        text = _start(reply)
    return " ".join(text.split())[:160]
