"""A real HTTP server for completions that can break in every way we know of: by name, for one reply each.

Its honest completions are numbers drawn with the seed that it is sent, so that two pools drawn from it can be compared.
"""

import contextlib
import gzip
import json
import random
import threading
from collections import Counter
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np

Body = dict[str, Any]


def answer(body: Body, count: int | None = None, logprobs: bool = True) -> dict[str, Any]:
    """Completions as vLLM words them: the seed of the i-th is the seed + i."""
    choices = []
    for i in range(body["n"] if count is None else count):
        number = str(np.random.default_rng(body["seed"] + i).integers(10**9))
        choice: dict[str, Any] = {"index": i, "finish_reason": "stop"}
        if "messages" in body:
            content = [{"token": d, "logprob": -2.0} for d in number]
            choice |= {"message": {"role": "assistant", "content": number}, "logprobs": {"content": content}}
        else:
            choice |= {"text": number, "logprobs": {"token_logprobs": [-2.0] * len(number)}}
        if not logprobs:
            del choice["logprobs"]
        choices.append(choice)
    return {"choices": choices}


def _changed(body: Body, **changes: Any) -> bytes:
    reply = answer(body)
    for choice in reply["choices"]:
        choice |= changes
    return json.dumps(reply).encode()


STATUSES = {"busy": 429, "broken": 500, "away": 503, "no message": 500}
CONTENTS: dict[str, Callable[[Body], bytes]] = {
    "null": lambda body: b"null",
    "no choices": lambda body: b'{"choices": []}',
    "choices null": lambda body: b'{"choices": null}',
    "choice null": lambda body: b'{"choices": [null]}',
    "choice text": lambda body: b'{"choices": ["stop"]}',
    "message null": lambda body: _changed(body, message=None),
    "message list": lambda body: _changed(body, message=[1]),
    "text number": lambda body: _changed(body, text=5),
    "text list": lambda body: _changed(body, text=["5"]),
    "index text": lambda body: _changed(body, index="first"),
    "aborted": lambda body: _changed(body, finish_reason="abort"),
    "finish list": lambda body: _changed(body, finish_reason=["stop"]),
    "logprobs text": lambda body: _changed(body, logprobs="high"),
    "logprob text": lambda body: _changed(body, logprobs={"token_logprobs": ["a"]}),
    "logprob NaN": lambda body: _changed(body, logprobs={"token_logprobs": [float("nan")]}),
    "logprob positive": lambda body: _changed(body, logprobs={"token_logprobs": [7.0]}),
    "tokens text": lambda body: _changed(body, token_ids="abc"),
    "not JSON": lambda body: b"<html>a proxy's page</html>",
    "not UTF-8": lambda body: b'{"choices": "\xff\xfe\xfd"}',
    "deep": lambda body: b'{"choices":' + b"[" * 200_000,
    "long number": lambda body: b'{"choices":' + b"1" * 100_000 + b"}",
    "huge": lambda body: b'{"choices": "' + b"x" * 3_000_000 + b'"}',
    "busy": lambda body: b'{"error": "slow down"}',
    "broken": lambda body: b'{"error": {"message": "oops"}}',
    "away": lambda body: b"away",
    "no message": lambda body: b"[" * 100_000,
    "bad gzip": lambda body: b"not gzip",
    "cut gzip": lambda body: gzip.compress(json.dumps(answer(body)).encode())[:-12],
    "gzip bomb": lambda body: gzip.compress(b'{"choices": "' + b"x" * 30_000_000 + b'"}', 1),
    "bad encoding": lambda body: b"what is this",
    "cut": lambda body: json.dumps(answer(body)).encode(),
    "reset": lambda body: b"",
    "drip": lambda body: json.dumps(answer(body)).encode(),
    "header drip": lambda body: b"",
    "stall": lambda body: b"",
}
FAULTS = tuple(CONTENTS)
"""Each ends one reply; the last three last until the client gives up or the server is closed."""
SLOW = ("drip", "header drip", "stall")
ENCODINGS = {"bad gzip": "gzip", "cut gzip": "gzip", "gzip bomb": "gzip", "bad encoding": "br"}


class FaultyServer:
    """`behave(call, body)` chooses what happens to a request: None an honest answer, a fault by name, or a
    (status, content) of its own. Calls are counted from 1."""

    def __init__(self) -> None:
        self.behave: Callable[[int, Body], tuple[int, Any] | str | None] = lambda call, body: None
        self.bodies: list[Body] = []
        self.paths: list[str] = []
        self.under_way, self.most = 0, 0
        self.lock, self.closing = threading.Lock(), threading.Event()
        server = self

        class Handler(_Handler):
            owner = server

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        threading.Thread(target=self._http.serve_forever, daemon=True).start()

    def misbehave(self, seed: float, rate: float) -> None:
        """A random fault in that share of replies. It depends on the request and on how often it was made, not on the
        order in which requests arrive."""
        tries: Counter[tuple[int, int]] = Counter()

        def behave(call: int, body: Body) -> str | None:
            request = body["seed"], body["n"]
            with self.lock:
                tries[request] += 1
                chance = random.Random(f"{seed}/{request}/{tries[request]}")
            return chance.choice(FAULTS) if chance.random() < rate else None

        self.behave = behave

    def close(self) -> None:
        self.closing.set()
        self._http.shutdown()
        self._http.server_close()


class _Handler(BaseHTTPRequestHandler):
    owner: FaultyServer

    def do_GET(self) -> None:
        self.reply(200, {"data": [{"id": "numbers", "max_model_len": 128}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        owner = self.owner
        with owner.lock:
            owner.bodies.append(body)
            owner.paths.append(self.path)
            call = len(owner.bodies)
            owner.under_way += 1
            owner.most = max(owner.most, owner.under_way)
        chosen = owner.behave(call, body)
        with owner.lock:
            owner.under_way -= 1
        if isinstance(chosen, str):
            self.fail(chosen, CONTENTS[chosen](body))
        else:
            self.reply(*(chosen or (200, answer(body))))

    def reply(self, status: int, content: Any, **headers: str) -> None:
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"content-length": str(len(data)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        try:
            self.wfile.write(data)
        except ConnectionError:
            self.close_connection = True

    def fail(self, fault: str, content: bytes) -> None:
        if fault in SLOW:
            self.be_slow(fault, content)
        elif fault == "reset":
            self.connection.close()
        elif fault == "cut":
            self.reply(200, content[:-5], **{"content-length": str(len(content))})
            self.connection.close()
        else:
            headers = {"content-encoding": ENCODINGS[fault]} if fault in ENCODINGS else {}
            self.reply(STATUSES.get(fault, 200), content, **headers)

    def be_slow(self, fault: str, content: bytes) -> None:
        """Bytes that each come in time, of a reply that does not."""
        if fault != "stall":
            self.wfile.write(b"HTTP/1.0 200 OK\r\ncontent-length: 100000\r\n")
        if fault == "drip":
            self.wfile.write(b"\r\n")
        try:
            while not self.owner.closing.wait(0.05):
                if fault != "stall":
                    self.wfile.write(b" " if fault == "drip" else b"x")
                    self.wfile.flush()
                elif self.connection.recv(1) == b"":
                    break
        except OSError:
            pass
        self.close_connection = True

    def finish(self) -> None:
        with contextlib.suppress(OSError):
            super().finish()

    def log_message(self, *args: Any) -> None:
        pass
