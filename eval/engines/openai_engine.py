"""Any OpenAI-compatible server (vllm serve, SGLang, llama.cpp): completions for tokens and text, chat for messages.

Many requests are in flight at once, and transient failures are retried (`http_client`). A server that returns fewer
completions than requested is asked for the rest. What still fails is reported, and a later run samples it. A reply is
taken whole or not at all: one with a missing or wrongly typed field counts as failed.

Every sampling field is sent, so that the server's defaults and the model's generation_config have no effect. `top_k`,
`min_p`, `repetition_penalty` and the end tokens are extensions that those servers share; `extensions=False` leaves them
out, for servers that reject unknown fields.
"""

import math
import queue
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from offleash.eval.engines.base import Completion, Drawn, Finish, Request, cut_at_stop
from offleash.eval.engines.model import ModelSource, load_tokenizer, token_ids
from offleash.eval.errors import ConfigError, EngineError, first_line
from offleash.eval.http_client import RequestFailed, RetryingClient
from offleash.eval.sampling import Sampling, is_int

BEAT = 1.0
"""Seconds without an arrival after which the caller gets a turn."""
TOKEN_BYTES, OTHER_BYTES = 2_000, 1_000_000
"""The most that a reply may have for each token, with its text and log-probability as JSON, and beside them."""
ROUNDING = 1e-4


def served_model(
    url: str, name: str | None = None, tokenizer: str | None = None, end_tokens: Sequence[str] = ()
) -> ModelSource:
    """Ask a server what it serves. Its weights cannot be seen: the pool records the name that the server gives them."""
    base = url.rstrip("/")
    base = base if urlsplit(base).path else f"{base}/v1"
    try:
        with closing(RetryingClient(base, attempts=1, timeout=30.0)) as client:
            served = client.request("models", _contexts)
    except RequestFailed as error:
        raise EngineError(
            f"no OpenAI-compatible server at {base}: {first_line(error)}; start it, or check the URL (.../v1)"
        ) from error
    if name is None and len(served) != 1:
        raise ConfigError(f"{base} serves {', '.join(served) or 'nothing'}: choose one (served_model, --served-model)")
    chosen = name or next(iter(served))
    if chosen not in served:
        raise ConfigError(f"{base} does not serve {chosen!r}; it has {', '.join(served)}")
    words = None if tokenizer is None else load_tokenizer(tokenizer)
    if words is None and end_tokens:
        raise ConfigError("end_tokens (--end-token) needs tokenizer (--tokenizer): a server needs their ids")
    ends = [] if words is None else [words.eos_token_id, *token_ids(words, end_tokens)]
    return ModelSource(
        name=chosen,
        path=base,
        revision="",
        weights=f"server:{chosen}",
        dtype="server",
        tokenizer=words,
        end_ids=tuple(sorted({i for i in ends if i is not None})),
        context=served[chosen],
    )


class OpenAIEngine:
    """`concurrency` requests at once, each with `timeout` seconds in all and retried up to `retries` times.

    The pauses between tries begin at `pause` seconds; none starts more than `deadline` seconds after the first (None:
    no limit). `block` completions per request: few, because the reply waits for the longest of them.
    """

    name = "openai"

    def __init__(
        self,
        source: ModelSource,
        *,
        context: int,
        concurrency: int = 64,
        timeout: float = 1800.0,
        retries: int = 6,
        pause: float = 0.5,
        deadline: float | None = None,
        block: int = 8,
        extensions: bool = True,
    ) -> None:
        if concurrency < 1 or block < 1:
            raise ConfigError(f"concurrency and block must be at least 1, got {concurrency} and {block}")
        self.source, self.block, self.extensions, self.concurrency = source, block, extensions, concurrency
        self.client = RetryingClient(
            source.path,
            attempts=retries + 1,
            timeout=timeout,
            first_pause=pause,
            deadline=deadline,
            concurrency=concurrency,
        )
        self._over = threading.Event()

    def generate(self, requests: Iterable[Request], sampling: Sampling) -> Iterator[Drawn | None]:
        if not self.extensions and (sampling.top_k or sampling.min_p or sampling.repetition_penalty != 1):
            raise ConfigError("top_k, min_p and repetition_penalty need extensions=true: turn it on, or leave them off")
        todo: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        done: queue.SimpleQueue[Drawn | EngineError] = queue.SimpleQueue()
        over = self._over = threading.Event()
        # Daemons: a thread in mid-call must not keep an interrupted program from ending.
        for _ in range(self.concurrency):
            threading.Thread(target=self._work, args=(todo, done, over, sampling), daemon=True).start()
        waiting, under_way = iter(requests), 0
        try:
            while True:
                while under_way < 2 * self.concurrency and (request := next(waiting, None)) is not None:
                    todo.put(request)
                    under_way += 1
                if not under_way:
                    return
                drawn = _arrival(done)
                under_way -= drawn is not None
                yield drawn
        finally:
            over.set()
            for _ in range(self.concurrency):
                todo.put(None)

    def close(self) -> None:
        self._over.set()
        self.client.close()

    def _work(
        self,
        todo: "queue.SimpleQueue[Request | None]",
        done: "queue.SimpleQueue[Drawn | EngineError]",
        over: threading.Event,
        sampling: Sampling,
    ) -> None:
        while (request := todo.get()) is not None and not over.is_set():
            try:
                done.put(Drawn(request, self._answer(request, sampling, over)))
            except RequestFailed as failure:
                if failure.transient or over.is_set():
                    done.put(Drawn(request, [Completion(str(failure), None, None, "error")] * request.n))
                    continue
                hint = 'if it does not know a field, try engine_args {"extensions": false} (--engine-args)'
                done.put(EngineError(f"the server rejected a request ({failure}); {hint}"))
            except Exception as error:  # a bug here: the thread that waits must be told
                done.put(EngineError(f"a request failed ({type(error).__name__}: {first_line(error)})"))

    def _answer(self, request: Request, sampling: Sampling, over: threading.Event) -> list[Completion]:
        """All n completions; a server that ignores n is asked again, with the seed of the next sample.

        vLLM's server gives the i-th of n the seed + i; others may number them otherwise.
        """
        completions: list[Completion] = []
        while len(completions) < request.n:
            got = len(completions)
            body = self._body(request, sampling, request.n - got, request.seed + got)
            path = "chat/completions" if "messages" in body else "completions"
            limit = OTHER_BYTES + body["n"] * sampling.max_new_tokens * TOKEN_BYTES
            more = self.client.request(path, partial(self._completions, sampling=sampling), body, over.wait, limit)
            completions += more[: request.n - got]
        return completions

    def _completions(self, reply: Any, sampling: Sampling) -> list[Completion]:
        return [self._completion(choice, sampling) for choice in _choices(reply)]

    def _body(self, request: Request, sampling: Sampling, n: int, seed: int) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self.source.name,
            "n": n,
            "seed": seed,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "max_tokens": sampling.max_new_tokens,
        }
        if sampling.stop:
            body["stop"] = list(sampling.stop)
        if isinstance(request.prompt, list) and isinstance(request.prompt[0], dict):
            body |= {"messages": request.prompt, "logprobs": True}
        else:
            body |= {"prompt": request.prompt, "logprobs": 1}
        if self.extensions:
            body |= {
                "top_k": sampling.top_k or -1,  # some servers reject 0; all take -1 as "off"
                "min_p": sampling.min_p,
                "repetition_penalty": sampling.repetition_penalty,
                "return_token_ids": True,
            }
            if self.source.end_ids:
                body["stop_token_ids"] = list(self.source.end_ids)
        return body

    def _completion(self, choice: dict[str, Any], sampling: Sampling) -> Completion:
        logprobs, ids = _logprobs(choice), _token_ids(choice)
        text, tokens = _text(choice), len(ids) if ids else (len(logprobs) if logprobs else None)
        if ids and self.source.tokenizer is not None:
            # Decoded as the other engines do: what a server's own decoding does to spaces is not the model's doing.
            text = self.source.tokenizer.decode(ids, skip_special_tokens=True)
        # Servers report log-probabilities before temperature and truncation: usable only if there are none.
        known = bool(logprobs) and sampling.temperature == 1 and sampling.untruncated
        finish: Finish = "length" if choice.get("finish_reason") == "length" else "stop"
        return Completion(
            cut_at_stop(text, sampling.stop), tokens, float(sum(logprobs or ())) if known else None, finish
        )


def _arrival(done: "queue.SimpleQueue[Drawn | EngineError]") -> Drawn | None:
    try:
        result = done.get(timeout=BEAT)
    except queue.Empty:
        return None
    if isinstance(result, EngineError):
        raise result
    return result


def _contexts(reply: Any) -> dict[str, int | None]:
    """The models that a server has, with the length of their context where it tells."""
    lengths = {str(entry["id"]): entry.get("max_model_len") for entry in reply["data"]}
    return {name: length if is_int(length) else None for name, length in lengths.items()}


def _choices(reply: Any) -> list[dict[str, Any]]:
    """Finished completions in the server's order; a reply without any, or with an aborted one, is a failure."""
    choices = list(reply["choices"])
    if not choices:
        raise RequestFailed("the server returned no completion")
    for choice in choices:
        reason, place = choice.get("finish_reason"), choice.get("index")
        if place is not None and not is_int(place):
            raise RequestFailed(f"the server's index of a completion is {place!r:.40}")
        if not isinstance(reason, str) or reason in ("abort", "error", "cancelled", "timeout"):
            raise RequestFailed(f"the server gave up on a completion (finish_reason {reason!r:.40})")
    return sorted(choices, key=lambda choice: choice.get("index") or 0)


def _text(choice: dict[str, Any]) -> str:
    if "message" not in choice:
        return _text_of(choice, "text")
    message = choice["message"]
    thought = _text_of(message, "reasoning_content") or _text_of(message, "reasoning")
    return (f"<think>\n{thought}\n</think>\n" if thought else "") + _text_of(message, "content")


def _text_of(holder: dict[str, Any], name: str) -> str:
    """A field that may be missing or null, but nothing else than text."""
    value = holder.get(name)
    if value is not None and not isinstance(value, str):
        raise RequestFailed(f"the server's {name} is not text: {value!r:.40}")
    return value or ""


def _token_ids(choice: dict[str, Any]) -> list[int] | None:
    ids = choice.get("token_ids")
    if ids is not None and not (isinstance(ids, list) and all(map(is_int, ids))):
        raise RequestFailed(f"the server's token_ids are not a list of integers: {ids!r:.40}")
    return ids


def _logprobs(choice: dict[str, Any]) -> list[float] | None:
    """Log-probabilities of the sampled tokens, if the server returns them."""
    given = choice.get("logprobs") or {}
    values = given.get("token_logprobs") or [entry.get("logprob") for entry in given.get("content") or ()]
    if not values or None in values:
        return None
    if strange := [value for value in values if not (math.isfinite(value) and value <= ROUNDING)]:
        raise RequestFailed(f"the server's log-probability of a token is {strange[0]!r:.40}")
    return [float(value) for value in values]
