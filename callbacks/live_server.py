"""Requests to vLLM's server that end when the server does.

TRL waits for an answer without a limit, rightly: a batch of rollouts may take an hour. But a server whose engine was
killed closes down only after its open requests, and those are never answered: both would wait for ever. So while a
request is out the server is asked whether it is well, and given up after three times no. Read against trl 1.16.
"""

from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from functools import partial
from threading import Thread
from typing import Any

import httpx

from offleash.callbacks.policy.trainer_protocol import PolicyTrainer
from offleash.callbacks.policy.trl_seam import wrap_requests
from offleash.eval.errors import EngineError, first_line

EVERY = 10.0
"""Seconds between questions."""
TRIES = 3


def watch_server(trainer: PolicyTrainer, every: float = EVERY) -> None:
    """From here on a request to vLLM's server is answered, or raises EngineError when the server is gone."""
    wrap_requests(trainer, partial(_answer, every))


def _answer(every: float, server: str, request: Callable[[], Any]) -> Any:
    answer, failed = _in_thread(request), 0
    while failed < TRIES:
        try:
            return answer.result(every)
        except NotYet:
            failed = 0 if _is_well(server) else failed + 1
        except OSError as error:  # what requests raises is one
            raise _gone(server, first_line(error)) from error
    raise _gone(server, f"and failed its health check {TRIES} times")


def _in_thread(call: Callable[[], Any]) -> Future[Any]:
    """The result of a call in a thread that an exit does not wait for."""
    future: Future[Any] = Future()

    def work() -> None:
        try:
            future.set_result(call())
        except Exception as error:  # handed on to whoever waits
            future.set_exception(error)

    Thread(target=work, daemon=True).start()
    return future


def _is_well(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=10).status_code == 200
    except httpx.HTTPError:
        return False


def _gone(url: str, why: str) -> EngineError:
    return EngineError(f"the vLLM server at {url} does not answer ({why}): start it again, then this run with --resume")
