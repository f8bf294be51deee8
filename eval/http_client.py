"""The retry policy of every request to an OpenAI-compatible server, shared by the engine and the judge.

A failure that another try may cure (no connection, a timeout, a busy server, an unusable reply) is tried again after
pauses that double, with jitter, and that are at least what a Retry-After header asks for. This is `httpx` and one loop
rather than the `openai` SDK, which retries neither unusable replies nor the same statuses: the loop would remain.
"""

import os
import random
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

import httpx

from offleash.eval.errors import ConfigError, first_line

T = TypeVar("T")
TRANSIENT_STATUSES = {408, 409, 425, 429, 500, 502, 503, 504, 529}
LONGEST_PAUSE = 60.0


class RequestFailed(Exception):
    """No usable reply after `attempts` tries; `transient` says that a later one may succeed."""

    def __init__(self, reason: str, *, transient: bool = True, retry_after: float = 0.0) -> None:
        super().__init__(reason)
        self.transient, self.retry_after, self.attempts = transient, retry_after, 1


class RetryingClient:
    """Requests below `url` from up to `concurrency` threads, each tried up to `attempts` times.

    `timeout` is how many seconds one try waits for its reply; none starts more than `deadline` seconds after the first.
    The API key is read from the environment variable OPENAI_API_KEY, if it is set.
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
        self._http = httpx.Client(
            headers={"Authorization": f"Bearer {key}"} if key else {},
            limits=httpx.Limits(max_connections=concurrency, max_keepalive_connections=concurrency),
            timeout=httpx.Timeout(timeout, connect=min(30.0, timeout)),
        )

    def request(
        self,
        path: str,
        read: Callable[[Any], T],
        body: Any = None,
        wait: Callable[[float], bool | None] | None = None,
    ) -> T:
        """Post `body` (get, without one) and return what `read` makes of the reply's JSON. Raises RequestFailed.

        `read` raises RequestFailed, or an error of a value or lookup, for a reply that cannot be used. `wait` pauses
        between tries and returns True to give up; by default that is when the client is closed.
        """
        wait, start = wait or self._closed.wait, time.monotonic()
        for attempt in range(self.attempts):
            try:
                return self._try(path, read, body)
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

    def _try(self, path: str, read: Callable[[Any], T], body: Any) -> T:
        if self._http.is_closed:
            raise RequestFailed("the client was closed", transient=False)
        try:
            reply = self._http.request("GET" if body is None else "POST", f"{self.url}/{path}", json=body)
        except httpx.HTTPError as error:
            raise RequestFailed(f"{type(error).__name__}: {first_line(error)}") from error
        if not reply.is_success:
            status, after = reply.status_code, reply.headers.get("retry-after", "")
            raise RequestFailed(
                f"HTTP {status}: {_message(reply)}",
                transient=status in TRANSIENT_STATUSES,
                retry_after=float(after) if after.isdecimal() else 0.0,
            )
        try:
            return read(reply.json())
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise RequestFailed(f"the server's reply cannot be read: {reply.text[:80]!r}") from error


def _message(reply: httpx.Response) -> str:
    try:
        error = reply.json()["error"]
        text = str(error["message"] if isinstance(error, dict) else error)
    except (ValueError, LookupError, TypeError):
        text = reply.text
    return " ".join(text.split())[:160]
