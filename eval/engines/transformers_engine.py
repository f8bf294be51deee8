"""The default engine: transformers' `generate` in this process.

Each sample has its own random generator: a logits processor, the last one, draws a token per row (as argmax of
log-probability plus Gumbel noise, which is how torch's multinomial draws too) and leaves it as the only one possible.
So samples share a batch and still have their own seeds, and the log-probability of what was drawn is known at once. The
model's generation_config.json is ignored except for its end tokens.
"""

import math
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    GenerationConfig,
    LogitsProcessor,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    StoppingCriteria,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from offleash.eval.engines.base import Completion, Drawn, Request, cut_at_stop
from offleash.eval.engines.model import ModelSource
from offleash.eval.errors import ConfigError, EngineError, first_line
from offleash.eval.sampling import Sampling

SHOWN = 3


@dataclass(frozen=True, slots=True)
class Piece:
    """Some rows of a batch: samples of a request, from the `first` on. Its pieces share `drawn`, those made so far."""

    request: Request
    first: int
    drawn: list[Completion]
    rows: int


def _device(name: str) -> torch.device:
    """Raises ConfigError unless this machine can hold tensors there and draw random numbers, which "meta" cannot."""
    try:
        return torch.Generator(torch.empty(0, device=name).device).device
    except (AssertionError, RuntimeError) as error:  # the first without a CUDA that torch was built for
        raise ConfigError(f"device {name!r} is none that torch has here: {first_line(error, 120)}") from error


class TransformersEngine:
    """`batch_size` sequences at once."""

    name = "transformers"
    block = 64

    def __init__(self, source: ModelSource, *, context: int, batch_size: int = 64, device: str | None = None) -> None:
        if batch_size < 1:
            raise ConfigError(f"batch_size must be at least 1, got {batch_size}")
        self.end_ids, self.batch_size = source.end_ids, batch_size
        self.tokenizer: Any = source.tokenizer
        self.device = _device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self.model = _load(source, self.device)
        # What `generate` is not told it takes from here, and a model may ship temperature, top_k and more in it.
        self.model.generation_config = GenerationConfig()

    def generate(self, requests: Iterable[Request], sampling: Sampling) -> Iterator[Drawn]:
        for batch in self._batches(requests):
            completions = iter(self._run(batch, sampling))
            for piece in batch:
                piece.drawn.extend(islice(completions, piece.rows))
                if len(piece.drawn) == piece.request.n:
                    yield Drawn(piece.request, piece.drawn)

    def close(self) -> None:
        del self.model

    def _batches(self, requests: Iterable[Request]) -> Iterator[list[Piece]]:
        """Whole requests up to `batch_size` rows; a bigger one is cut, and all its full pieces have a batch alone."""
        batch: list[Piece] = []
        for request in requests:
            drawn = list[Completion]()
            for first in range(0, request.n, self.batch_size):
                piece = Piece(request, first, drawn, min(self.batch_size, request.n - first))
                if batch and sum(other.rows for other in batch) + piece.rows > self.batch_size:
                    yield batch
                    batch = []
                batch.append(piece)
        if batch:
            yield batch

    def _run(self, batch: list[Piece], sampling: Sampling) -> list[Completion]:
        prompts = [_token_ids(piece.request) for piece in batch for _ in range(piece.rows)]
        width = max(map(len, prompts))
        pad = self.tokenizer.pad_token_id or 0
        input_ids = torch.tensor([[pad] * (width - len(p)) + p for p in prompts], device=self.device)
        mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts], device=self.device)
        seeds = [piece.request.seed + piece.first + i for piece in batch for i in range(piece.rows)]
        draw = SeededDraw(sampling, [torch.Generator(self.device).manual_seed(seed) for seed in seeds], mask)
        ends = Ends(self.end_ids, sampling.stop, self.tokenizer, width)
        config = GenerationConfig(
            do_sample=False,
            num_beams=1,
            max_new_tokens=sampling.max_new_tokens,
            eos_token_id=list(self.end_ids) or None,
            pad_token_id=pad,
        )
        try:
            with torch.no_grad():
                output = self.model.generate(
                    input_ids=input_ids,
                    attention_mask=mask,
                    generation_config=config,
                    logits_processor=[draw],
                    stopping_criteria=[ends],
                )
        except torch.OutOfMemoryError as error:
            raise EngineError(
                f"out of memory at {len(prompts)} sequences of up to {width + sampling.max_new_tokens} tokens: lower "
                f"batch_size ({first_line(error, 80)})"
            ) from error
        return self._completions(output[:, width:], ends, draw, sampling)

    def _completions(
        self, output: torch.Tensor, ends: "Ends", draw: "SeededDraw", sampling: Sampling
    ) -> list[Completion]:
        length_r = torch.where(ends.length_r > 0, ends.length_r, output.shape[1])
        logp_tr = torch.stack(draw.logp_tr).double()
        drawn_tr = torch.arange(len(logp_tr), device=self.device)[:, None] < length_r
        logprobs = torch.where(drawn_tr, logp_tr, 0.0).sum(0).tolist()
        if any(map(math.isnan, logprobs)):  # a draw from them would be of the same token every time
            raise EngineError(
                f"the model's logits are not numbers: its weights are not, or {self.model.dtype} or the sampling "
                "parameters overflow"
            )
        lengths, finished = length_r.tolist(), (ends.length_r > 0).tolist()
        ids = [row[:length] for row, length in zip(output.tolist(), lengths, strict=True)]
        texts = self.tokenizer.batch_decode(ids, skip_special_tokens=True)
        return [
            Completion(cut_at_stop(text, sampling.stop), length, logprob, "stop" if stopped else "length")
            for text, length, logprob, stopped in zip(texts, lengths, logprobs, finished, strict=True)
        ]


class SeededDraw(LogitsProcessor):
    """Draws each row's next token with its own generator."""

    def __init__(self, sampling: Sampling, generators: list[torch.Generator], mask: torch.Tensor) -> None:
        self.warpers = _warpers(sampling)
        self.penalty = sampling.repetition_penalty
        self.generators, self.mask = generators, mask
        self.logp_tr: list[torch.Tensor] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if self.penalty != 1:
            scores = _penalized(scores, input_ids, self.mask, self.penalty)
        for warp in self.warpers:
            scores = warp(input_ids, scores)
        logp = scores.log_softmax(-1)
        noise = torch.empty_like(logp)
        for row, generator in zip(noise, self.generators, strict=True):
            row.exponential_(generator=generator)
        chosen = (logp - noise.log_()).argmax(-1, keepdim=True)
        self.logp_tr.append(logp.gather(1, chosen).squeeze(1))
        return torch.full_like(scores, -torch.inf).scatter_(1, chosen, 0.0)


class Ends(StoppingCriteria):
    """Remembers where each row ended: after how many tokens, 0 if it has not."""

    def __init__(self, end_ids: tuple[int, ...], stop: tuple[str, ...], tokenizer: Any, width: int) -> None:
        self.end_ids, self.width = torch.tensor(end_ids, dtype=torch.long), width
        self.stop, self.tokenizer = stop, tokenizer
        # A character is at most four bytes, and a token at least one.
        self.reach = 4 * max(map(len, stop), default=0) + 8
        self.length_r = torch.zeros(0, dtype=torch.long)

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        if len(self.length_r) == 0:
            self.length_r = torch.zeros(len(input_ids), dtype=torch.long, device=input_ids.device)
            self.end_ids = self.end_ids.to(input_ids.device)
        ended = torch.isin(input_ids[:, -1], self.end_ids)
        if self.stop:
            ended = ended | self._at_stop_text(input_ids)
        now = torch.full_like(self.length_r, input_ids.shape[1] - self.width)
        self.length_r = torch.where(ended & (self.length_r == 0), now, self.length_r)
        return ended

    def _at_stop_text(self, input_ids: torch.Tensor) -> torch.Tensor:
        """By decoding the last tokens: transformers' own StopStringCriteria fails on vocabularies without letters."""
        tail = input_ids[:, max(self.width, input_ids.shape[1] - self.reach) :]
        texts = self.tokenizer.batch_decode(tail.tolist(), skip_special_tokens=True)
        return torch.tensor([any(word in text for word in self.stop) for text in texts], device=input_ids.device)


def _warpers(sampling: Sampling) -> list[Any]:
    """In the order in which `generate` applies them."""
    known: list[tuple[Any, float, float]] = [
        (TemperatureLogitsWarper, sampling.temperature, 1),
        (TopKLogitsWarper, sampling.top_k, 0),
        (TopPLogitsWarper, sampling.top_p, 1),
        (MinPLogitsWarper, sampling.min_p, 0),
    ]
    return [warper(value) for warper, value, off in known if value != off]


def _penalized(scores: torch.Tensor, input_ids: torch.Tensor, mask: torch.Tensor, penalty: float) -> torch.Tensor:
    """transformers' repetition penalty on prompt and completion, row by row without the padding before the prompt."""
    penalize = RepetitionPenaltyLogitsProcessor(penalty)
    starts = (mask == 0).sum(1).tolist()
    return torch.cat([penalize(input_ids[r : r + 1, start:], scores[r : r + 1]) for r, start in enumerate(starts)])


def _token_ids(request: Request) -> list[int]:
    ids = [i for i in request.prompt if isinstance(i, int)]
    if len(ids) != len(request.prompt):
        raise EngineError("the transformers engine takes prompts as token ids")
    return ids


def _load(source: ModelSource, device: torch.device) -> Any:
    place = {"device_map": "auto"} if device.type == "cuda" else {}
    try:
        model, found = AutoModelForCausalLM.from_pretrained(
            source.path,
            revision=source.revision or None,
            dtype=source.dtype,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # reported below, by name
            **place,
        )
    except Exception as error:  # missing files, an unknown architecture; mangled files raise nearly anything
        raise ConfigError(f"cannot load model {source.name!r}: {first_line(error)}") from error
    _check_complete(source, found)
    if source.adapter is not None:
        model = _with_adapter(model, source.adapter)
    return model.eval()


def _check_complete(source: ModelSource, found: dict[str, Any]) -> None:
    """transformers initializes tensors missing from the files at random. A tensor tied to another is not missing."""
    for names, fault in (
        (sorted(found["missing_keys"]), "its files do not have"),
        (sorted(name for name, *_ in found["mismatched_keys"]), "its config does not match the shape of"),
    ):
        if names:
            more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
            raise ConfigError(
                f"model {source.name!r} is incomplete: {fault} {', '.join(names[:SHOWN])}{more}, which would be "
                "initialized at random; save or download it again"
            )


def _with_adapter(model: Any, adapter: str) -> Any:
    try:
        from peft import PeftModel
    except ModuleNotFoundError as error:
        raise ConfigError(f"{adapter} is a PEFT adapter: pip install 'offleash[peft]'") from error
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="Found missing adapter keys")
        try:
            return PeftModel.from_pretrained(model, adapter).merge_and_unload()
        except UserWarning as error:
            raise ConfigError(f"adapter {adapter} is incomplete, save it again: {first_line(error)}") from error
        except Exception as error:  # as above
            raise ConfigError(f"cannot put adapter {adapter} on its model: {first_line(error)}") from error
