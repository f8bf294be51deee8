"""A request ends: with its answer however long that takes, with an error once the server behind it is gone."""

import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from offleash.callbacks.live_server import watch_server
from offleash.eval.errors import EngineError


class Web(ThreadingHTTPServer):
    """Answers a POST when it is let go, and says whether it is well."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.go, self.asked, self.go_at = threading.Event(), 0, 100
        self.unwell: set[int] = set()


class Handler(BaseHTTPRequestHandler):
    server: Web

    def do_GET(self) -> None:
        self.server.asked += 1
        if self.server.asked == self.server.go_at:
            self.server.go.set()
        self.send_response(503 if self.server.asked in self.server.unwell else 200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_POST(self) -> None:
        self.server.go.wait(30)
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def web() -> Iterator[Web]:
    made = Web()
    threading.Thread(target=made.serve_forever, daemon=True).start()
    yield made
    made.go.set()
    made.shutdown()
    made.server_close()


@pytest.fixture
def trainer_of(stand_in_trainer: Any) -> Any:
    return lambda client: stand_in_trainer(vllm_generation=SimpleNamespace(vllm_client=client))


@pytest.fixture
def client(web: Web, trainer_of: Any) -> Any:
    url = f"http://127.0.0.1:{web.server_address[1]}"
    made = SimpleNamespace(base_url=url, _post=lambda url, **kwargs: httpx.post(url, timeout=None, **kwargs).text)
    watch_server(trainer_of(made), every=0.05)
    return made


def test_a_slow_answer_is_waited_for_while_the_server_is_well(web: Web, client: Any) -> None:
    web.go_at = 5
    assert client._post(client.base_url, json={}) == "ok"
    assert web.asked >= 5


def test_a_server_that_holds_a_request_and_is_not_well_is_given_up(web: Web, client: Any) -> None:
    web.unwell = {1, 2, 3}
    start = time.monotonic()
    with pytest.raises(EngineError, match=r"does not answer \(and failed its health check 3 times\).*--resume"):
        client._post(client.base_url, json={})
    assert web.asked == 3
    assert time.monotonic() - start < 20


def test_a_moment_of_weakness_is_forgiven(web: Web, client: Any) -> None:
    web.unwell = {1, 2, 4, 5}
    web.go_at = 6
    assert client._post(client.base_url, json={}) == "ok"


def test_another_error_of_a_request_stays_what_it_is(client: Any, trainer_of: Any) -> None:
    def refuse(url: str, **kwargs: Any) -> Any:
        raise RuntimeError("Request failed: 400, prompt too long")

    client._post = refuse
    watch_server(trainer_of(client))
    with pytest.raises(RuntimeError, match="prompt too long"):
        client._post(client.base_url)
