"""Teacher forcing: log-probability, token entropy and perplexity of given completions under a model.

One forward pass of the transformer; its hidden states become logits a few hundred positions at a time, so the
[tokens, vocabulary] matrix of a long sequence never exists. Averages follow the paper (arXiv 2507.14843, App. B.4): the
mean over a sequence's tokens first, over sequences next. The temperature that divides the logits is explicit.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from offleash.eval.engines.model import ModelSource
from offleash.eval.errors import ConfigError, EngineError, first_line
from offleash.eval.scoring.settings import ScoreSettings

CHUNK_BYTES = 64 << 20
"""Size of a chunk of float32 logits: large enough to keep a device busy, small compared to any model."""


@dataclass(frozen=True)
class Scores:
    """One entry per completion. An empty completion has log-probability 0 and NaN means."""

    logprob_s: np.ndarray
    """Sum over tokens, nats."""
    entropy_s: np.ndarray
    """Mean over tokens of the entropy of the next-token distribution, full vocabulary, nats."""
    tokens_s: np.ndarray

    @property
    def nll_s(self) -> np.ndarray:
        """Negative log-probability per token; perplexity is its exponential."""
        return -self.logprob_s / np.where(self.tokens_s > 0, self.tokens_s, np.nan)


def score(
    model: Any,
    prompts: Sequence[Sequence[int]],
    completions: Sequence[Sequence[int]],
    *,
    temperature: float = 1.0,
    batch_tokens: int = 16384,
) -> Scores:
    """Score token sequences in batches of similar length with at most `batch_tokens` padded tokens."""
    if len(prompts) != len(completions):
        raise ConfigError(f"{len(prompts)} prompts but {len(completions)} completions")
    if temperature <= 0:
        raise ConfigError(f"temperature must be positive to score, got {temperature}")
    if any(len(prompt) == 0 for prompt in prompts):
        raise ConfigError("a prompt has no tokens: the first token of its completion has no distribution to score")
    size = len(completions)
    tokens_s = np.array([len(completion) for completion in completions], dtype=np.int64)
    logprob_s, entropy_s = np.zeros(size), np.full(size, np.nan)
    with evaluating(model):
        if size:
            check_head(model, [*prompts[0], *completions[0]])
        for batch in _batches(prompts, completions, batch_tokens):
            logps, entropies = _score_batch(
                model, [prompts[i] for i in batch], [completions[i] for i in batch], temperature
            )
            ends = np.cumsum(tokens_s[batch])
            for i, start, end in zip(batch, ends - tokens_s[batch], ends, strict=True):
                logprob_s[i] = logps[start:end].sum()
                entropy_s[i] = entropies[start:end].mean() if end > start else np.nan
    return Scores(logprob_s, entropy_s, tokens_s)


@contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """Inside the block: no gradients, no dropout. Afterwards the model is in the mode it was in."""
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(was_training)


def score_checked(
    model: Any, prompts: list[list[int]], completions: list[list[int]], settings: ScoreSettings
) -> Scores:
    """`score`; out of memory and log-probabilities that are not finite are an EngineError that says what to change."""
    try:
        scores = score(
            model, prompts, completions, temperature=settings.temperature, batch_tokens=settings.batch_tokens
        )
    except torch.OutOfMemoryError as error:
        raise EngineError(
            f"out of memory: lower batch_tokens ({first_line(error, 80)}); completed scores are kept"
        ) from error
    if not np.all(np.isfinite(scores.logprob_s)):
        raise EngineError("the model returns log-probabilities that are not finite: score it with dtype float32")
    return scores


def load_model(source: ModelSource) -> Any:
    from offleash.eval.engines.transformers_engine import TransformersEngine

    return TransformersEngine(source, context=0).model


def _batches(
    prompts: Sequence[Sequence[int]], completions: Sequence[Sequence[int]], batch_tokens: int
) -> list[list[int]]:
    lengths = [len(p) + len(c) for p, c in zip(prompts, completions, strict=True)]
    batches: list[list[int]] = []
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if batches and (len(batches[-1]) + 1) * lengths[batches[-1][0]] <= batch_tokens:
            batches[-1].append(i)
        else:
            batches.append([i])
    return batches


def _score_batch(
    model: Any, prompts: list[Sequence[int]], completions: list[Sequence[int]], temperature: float
) -> tuple[np.ndarray, np.ndarray]:
    """Log-probability and entropy of every completion token, sequence after sequence."""
    device = model.get_input_embeddings().weight.device
    rows = [torch.tensor([*prompt, *completion]) for prompt, completion in zip(prompts, completions, strict=True)]
    # Padded on the right: causal attention never reaches padding from a real token.
    input_ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True).to(device)
    mask = torch.nn.utils.rnn.pad_sequence([torch.ones_like(row) for row in rows], batch_first=True).to(device)
    hidden = model.get_decoder()(input_ids=input_ids, attention_mask=mask, use_cache=False).last_hidden_state
    wanted = [
        (row, position)
        for row, (prompt, completion) in enumerate(zip(prompts, completions, strict=True))
        for position in range(len(prompt), len(prompt) + len(completion))
    ]
    if not wanted:
        return np.zeros(0), np.zeros(0)
    row_t, position_t = (torch.tensor(column, device=device) for column in zip(*wanted, strict=True))
    hidden_t, target_t = hidden[row_t, position_t - 1], input_ids[row_t, position_t]
    del hidden
    vocabulary = model.get_output_embeddings().weight.shape[0]
    chunk = min(max(CHUNK_BYTES // (4 * vocabulary), 1), len(target_t))
    logps, entropies = torch.empty(2, len(target_t), dtype=torch.float64)
    # Two buffers for all chunks: allocated for each chunk, they fragment the heap to many times their size.
    logits, work = (torch.empty(chunk, vocabulary, device=device) for _ in range(2))
    for i in range(0, len(target_t), chunk):
        part = slice(i, min(i + chunk, len(target_t)))
        rows_here = part.stop - part.start
        head_logits(model, hidden_t[part], out=logits[:rows_here]).div_(temperature)
        logps[part], entropies[part] = _token_scores(logits[:rows_here], target_t[part], work[:rows_here])
    return logps.numpy(), entropies.numpy()


def _token_scores(
    logits: torch.Tensor, target_t: torch.Tensor, work: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """log p = x - log Z and H = log Z - E[x], where x is logits - max(logits). Overwrites both buffers."""
    logits -= logits.amax(-1, keepdim=True)
    torch.exp(logits, out=work)
    total = work.sum(-1)
    logp = logits.gather(1, target_t[:, None]).squeeze(1) - total.log()
    entropy = total.log() - work.mul_(logits).sum(-1) / total
    return logp, entropy


def head_logits(model: Any, hidden_t: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """The output layer, written to `out` in its dtype."""
    head = model.get_output_embeddings()
    if type(head) is torch.nn.Linear and head.bias is None and head.weight.dtype == out.dtype:
        torch.mm(hidden_t, head.weight.t(), out=out)
    else:
        out.copy_(head(hidden_t))
    cap = getattr(model.config.get_text_config(), "final_logit_softcapping", None)
    return out if cap is None else out.div_(cap).tanh_().mul_(cap)


def check_head(model: Any, ids: Sequence[int]) -> None:
    """Compare one position: a model may transform its logits after the output layer (scaling, ...)."""
    input_ids = torch.tensor([list(ids)], device=model.get_input_embeddings().weight.device)
    theirs = model(input_ids=input_ids, use_cache=False, logits_to_keep=1).logits[0, -1].float()
    hidden = model.get_decoder()(input_ids=input_ids, use_cache=False).last_hidden_state
    ours = head_logits(model, hidden[:, -1], out=torch.empty(1, len(theirs), device=theirs.device))[0]
    if not torch.allclose(ours, theirs, rtol=1e-2, atol=1e-2):
        raise ConfigError(
            f"{type(model).__name__} transforms its logits in a way that the chunked scorer does not support "
            f"(largest difference {float((ours - theirs).abs().max()):.3g}): its scores would be wrong"
        )
