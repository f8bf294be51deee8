"""Any OpenAI-compatible server (vllm serve, SGLang, llama.cpp): completions for tokens and text, chat for messages.

Many requests are in flight at once, and transient failures are retried (`http_client`). A server that returns fewer
completions than requested is asked for the rest. What still fails is reported, and a later run samples it.

Every sampling field is sent, so that the server's defaults and the model's generation_config have no effect. `top_k`,
`min_p`, `repetition_penalty` and the end tokens are extensions that those servers share; `extensions=False` leaves them
out, for servers that reject unknown fields.
"""

import queue
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from typing import Any
from urllib.parse import urlsplit

from offleash.eval.engines.base import Completion, Drawn, Finish, Request, cut_at_stop
from offleash.eval.engines.model import ModelSource, load_tokenizer, token_ids
from offleash.eval.errors import ConfigError, EngineError, first_line
from offleash.eval.http_client import RequestFailed, RetryingClient
from offleash.eval.sampling import Sampling, block_seed


def served_model(
    url: str, name: str | None = None, tokenizer: str | None = None, end_tokens: Sequence[str] = ()
) -> ModelSource:
    """Ask a server what it serves. Its weights cannot be seen: the pool records the name that the server gives them."""
    base = url.rstrip("/")
    base = base if urlsplit(base).path else f"{base}/v1"
    try:
        with closing(RetryingClient(base, attempts=1, timeout=30.0)) as client:
            served = client.request("models", lambda reply: {str(entry["id"]): entry for entry in reply["data"]})
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
        context=served[chosen].get("max_model_len"),
    )


class OpenAIEngine:
    """`concurrency` requests at once, each with `timeout` seconds for its reply and retried up to `retries` times.

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

    def generate(self, requests: Iterable[Request], sampling: Sampling) -> Iterator[Drawn]:
        if not self.extensions and (sampling.top_k or sampling.min_p or sampling.repetition_penalty != 1):
            raise ConfigError("top_k, min_p and repetition_penalty need extensions=true: turn it on, or leave them off")
        todo: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        done: queue.SimpleQueue[Drawn | EngineError] = queue.SimpleQueue()
        over = self._over = threading.Event()
        # Daemons: a thread in mid-call must not keep an interrupted program from ending.
        for _ in range(self.concurrency):
            threading.Thread(target=self._work, args=(todo, done, over, sampling), daemon=True).start()
        under_way = 0
        try:
            for request in requests:
                if under_way >= 2 * self.concurrency:
                    yield _checked(done.get())
                    under_way -= 1
                todo.put(request)
                under_way += 1
            for _ in range(under_way):
                yield _checked(done.get())
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

    def _answer(self, request: Request, sampling: Sampling, over: threading.Event) -> list[Completion]:
        """All n completions; a server that ignores n is asked again, with another seed each time."""
        completions: list[Completion] = []
        while len(completions) < request.n:
            got = len(completions)
            seed = block_seed(request.seed, "rest", got) if got else request.seed
            body = self._body(request, sampling, request.n - got, seed)
            path = "chat/completions" if "messages" in body else "completions"
            more = self.client.request(path, _choices, body, over.wait)
            completions += [self._completion(choice, sampling) for choice in more[: request.n - got]]
        return completions

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
        logprobs, ids = _logprobs(choice), choice.get("token_ids")
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


def _checked(result: Drawn | EngineError) -> Drawn:
    if isinstance(result, EngineError):
        raise result
    return result


def _choices(reply: dict[str, Any]) -> list[dict[str, Any]]:
    """Finished completions in the server's order; a reply without any, or with an aborted one, is a failure."""
    choices = list(reply["choices"])
    if not choices:
        raise RequestFailed("the server returned no completion")
    for reason in (choice.get("finish_reason") for choice in choices):
        if reason in (None, "abort", "error", "cancelled", "timeout"):
            raise RequestFailed(f"the server gave up on a completion (finish_reason {reason!r})")
    return sorted(choices, key=lambda choice: choice.get("index") or 0)


def _text(choice: dict[str, Any]) -> str:
    if "message" not in choice:
        return str(choice.get("text") or "")
    message = choice["message"]
    thought = message.get("reasoning_content") or message.get("reasoning")
    return (f"<think>\n{thought}\n</think>\n" if thought else "") + str(message.get("content") or "")


def _logprobs(choice: dict[str, Any]) -> list[float] | None:
    """Log-probabilities of the sampled tokens, if the server returns them."""
    given = choice.get("logprobs") or {}
    values = given.get("token_logprobs") or [entry.get("logprob") for entry in given.get("content") or ()]
    return None if not values or None in values else [float(value) for value in values]
