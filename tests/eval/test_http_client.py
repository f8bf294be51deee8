"""The retry policy: how long it waits, when it gives up, and what it says then."""

import gc
import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from offleash.eval.errors import ConfigError
from offleash.eval.http_client import LONGEST_PAUSE, RequestFailed, RetryingClient

Reply = tuple[int, dict[str, str], Any]
BUSY: Reply = (503, {}, "busy")


class Server(ThreadingHTTPServer):
    """Gives the replies in turn, and the last one from then on."""

    replies: list[Reply]
    asked = 0


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        status, headers, content = self.server.replies[min(self.server.asked, len(self.server.replies) - 1)]
        self.server.asked += 1
        data = json.dumps(content).encode()
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server(("127.0.0.1", 0), Handler)
    threading.Thread(target=made.serve_forever, daemon=True).start()
    yield made
    made.shutdown()
    made.server_close()


def ask(server: Server, pauses: list[float], *replies: Reply, **settings: Any) -> Any:
    server.replies = list(replies)
    options = {"attempts": 4, "timeout": 10.0, **settings}
    client = RetryingClient(f"http://127.0.0.1:{server.server_port}", **options)
    try:
        return client.request("models", lambda reply: reply["data"], wait=pauses.append)
    finally:
        client.close()


def test_pauses_double_with_jitter_and_stay_below_the_longest(server: Server) -> None:
    pauses: list[float] = []
    with pytest.raises(RequestFailed, match="HTTP 503: ") as failed:
        ask(server, pauses, BUSY, attempts=9)
    assert (failed.value.attempts, failed.value.transient, server.asked) == (9, True, 9)
    assert all(0.5 * 2**i <= pause <= min(1.5 * 2**i, LONGEST_PAUSE) for i, pause in enumerate(pauses[:6]))
    assert pauses[7] == LONGEST_PAUSE


@pytest.mark.parametrize(("header", "low", "high"), [("7", 7, 7), ("9999", 60, 60), ("soon", 0.5, 1.5)])
def test_retry_after_is_honored_up_to_the_longest_pause(server: Server, header: str, low: float, high: float) -> None:
    pauses: list[float] = []
    assert ask(server, pauses, (429, {"Retry-After": header}, ""), (200, {}, {"data": 1})) == 1
    (pause,) = pauses
    assert low <= pause <= high


def test_no_try_starts_after_the_deadline(server: Server) -> None:
    pauses: list[float] = []
    with pytest.raises(RequestFailed) as failed:
        ask(server, pauses, BUSY, attempts=50, first_pause=1.0, deadline=0.4)
    assert (failed.value.attempts, pauses) == (1, [])


def test_a_rejection_is_not_tried_again_and_an_unusable_reply_is(server: Server) -> None:
    with pytest.raises(RequestFailed, match="HTTP 404: no such") as failed:
        ask(server, [], (404, {}, {"error": {"message": "no\nsuch"}}))
    assert (failed.value.transient, server.asked) == (False, 1)
    server.asked = 0
    assert ask(server, [], (200, {}, {"other": 1}), (200, {}, []), (200, {}, {"data": 2})) == 2


def test_closing_the_client_ends_its_pauses(server: Server) -> None:
    server.replies = [BUSY]
    client = RetryingClient(f"http://127.0.0.1:{server.server_port}", attempts=2, timeout=10.0, first_pause=1e9)
    threading.Timer(0.3, client.close).start()
    with pytest.raises(RequestFailed):
        client.request("models", lambda reply: reply)
    assert server.asked == 1
    with pytest.raises(RequestFailed, match="closed"):
        client.request("models", lambda reply: reply)


def test_closing_the_client_ends_a_request_that_hangs() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        client = RetryingClient(f"http://127.0.0.1:{silent.getsockname()[1]}", attempts=5, timeout=1e6)
        threading.Timer(0.3, client.close).start()
        with pytest.raises(RequestFailed, match="closed") as failed:
            client.request("models", lambda reply: reply)
    assert not failed.value.transient


def test_a_reply_is_read_up_to_its_limit(server: Server) -> None:
    server.replies = [(200, {}, "x" * 1000)]
    client = RetryingClient(f"http://127.0.0.1:{server.server_port}", attempts=1, timeout=60.0)
    assert client.request("models", len, limit=1002) == 1000
    with pytest.raises(RequestFailed, match="more than 1,001 bytes"):
        client.request("models", len, limit=1001)
    client.close()


def test_nothing_of_a_reply_that_was_given_up_is_left_when_the_client_closes(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    server.replies = [(200, {}, "x" * 3_000_000)]
    for _ in range(5):
        client = RetryingClient(f"http://127.0.0.1:{server.server_port}", attempts=1, timeout=10.0)
        with pytest.raises(RequestFailed, match="more than 1,000 bytes"):
            client.request("models", str, limit=1000)
        client.close()
        del client
        gc.collect()
    assert "destroyed" not in caplog.text


def test_a_url_without_a_scheme_is_named() -> None:
    with pytest.raises(ConfigError, match="localhost:8000"):
        RetryingClient("localhost:8000", attempts=1, timeout=1.0)
