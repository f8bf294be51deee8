"""One HTTP request and its reply, bounded in time and in size.

httpx's timeouts are per read: a server that sends a byte now and then outlives any of them. Here the whole exchange,
from connecting to the last byte, is a task of an event loop in a thread of its own, and is cancelled when its time is
over or the client is closed.
"""

import asyncio
import concurrent.futures
import threading
from collections.abc import Mapping
from typing import Any, NamedTuple

import httpx

from offleash.eval.inflate import inflate

CONNECT_SECONDS = 30.0
CLOSING_SECONDS = 2.0


class Reply(NamedTuple):
    """`content` is unpacked."""

    status: int
    headers: Mapping[str, str]
    content: bytes


class HttpExchange:
    """Up to `connections` at once. `timeout` is how many seconds an exchange may take from beginning to end."""

    def __init__(self, *, timeout: float, connections: int, headers: Mapping[str, str]) -> None:
        self.timeout = timeout
        self._http = httpx.AsyncClient(
            headers={**headers, "Accept-Encoding": "gzip"},
            limits=httpx.Limits(max_connections=connections, max_keepalive_connections=connections),
            timeout=httpx.Timeout(None, connect=min(CONNECT_SECONDS, timeout)),
        )
        self._under_way: set[asyncio.Task[Any] | None] = set()
        self._closing, self._lock = False, threading.Lock()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def send(self, method: str, url: str, body: Any, limit: int) -> Reply:
        """From any thread. Raises TimeoutError, httpx.HTTPError, ValueError for a reply of more than `limit` bytes or
        one that cannot be unpacked, and concurrent.futures.CancelledError if it is closed meanwhile."""
        with self._lock:  # what is started before `close` is cancelled by it; nothing is started after
            if self._closing:
                raise concurrent.futures.CancelledError
            sent = asyncio.run_coroutine_threadsafe(self._send(method, url, body, limit), self._loop)
        status, headers, packed = sent.result()
        return Reply(status, headers, _unpacked(packed, headers.get("content-encoding", ""), limit))

    def close(self) -> None:
        with self._lock:
            if self._closing:
                return
            self._closing = True
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _send(self, method: str, url: str, body: Any, limit: int) -> tuple[int, Mapping[str, str], bytearray]:
        content, task = bytearray(), asyncio.current_task()
        self._under_way.add(task)
        try:
            async with asyncio.timeout(self.timeout), self._http.stream(method, url, json=body) as reply:
                async for piece in reply.aiter_raw():
                    content += piece
                    if len(content) > limit:
                        raise ValueError(f"the reply has more than {limit:,} bytes")
                return reply.status_code, reply.headers, content
        except TimeoutError:
            raise TimeoutError(f"no complete reply within {self.timeout:g} seconds") from None
        finally:
            self._under_way.discard(task)

    async def _end(self) -> None:
        tasks = [task for task in self._under_way if task is not None]  # which end those that they started themselves
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._http.aclose()
        # Inside httpx are generators that read a reply that was given up. The garbage collector, in whatever thread it
        # runs, has them closed by tasks of their own: none may be left to it, and those it has begun are waited for.
        await asyncio.get_running_loop().shutdown_asyncgens()
        await asyncio.sleep(0)  # a task that another thread asked for is there after one turn of the loop
        if rest := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(rest, timeout=CLOSING_SECONDS)


def _unpacked(content: bytearray, encoding: str, limit: int) -> bytes:
    if encoding.lower() in ("", "identity"):
        return bytes(content)
    if encoding.lower() in ("gzip", "x-gzip", "deflate"):
        return inflate(content, limit)
    raise ValueError(f"the reply is encoded as {encoding[:40]!r}, which was not asked for")
