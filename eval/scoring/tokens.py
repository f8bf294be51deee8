"""From stored text back to the tokens that are scored: what can be known about them, and what cannot.

The prompt is tokenized as it is for sampling (`engines.prompts`). The completion's text is tokenized by itself, so that
no token spans the boundary, and is followed by one end token unless the completion was truncated. A text can be
tokenized in several ways and the sampled token ids are not stored. Where the numbers of tokens differ, the sampled
tokenization was certainly another one.
"""

from dataclasses import dataclass
from typing import Any

from offleash.eval.engines.model import ModelSource, token_ids
from offleash.eval.engines.prompts import Prepared
from offleash.eval.pool.spec import PoolSpec


@dataclass(frozen=True, slots=True)
class TextEncoder:
    """`end_token` "" appends none; `context` None means no known limit."""

    tokenizer: Any
    end_token: str
    context: int | None

    def ids(self, text: str) -> list[int]:
        return [int(i) for i in self.tokenizer(text, add_special_tokens=False)["input_ids"]]

    @property
    def end_ids(self) -> list[int]:
        return token_ids(self.tokenizer, [self.end_token] if self.end_token else [])

    def fits(self, prompt: list[int], completion: list[int]) -> bool:
        return self.context is None or len(prompt) + len(completion) <= self.context


def find_encoder(source: ModelSource, end_token: str | None = None, spec: PoolSpec | None = None) -> TextEncoder:
    """`end_token` None is the tokenizer's own, or none for a pool with stop strings: which of them ended a completion
    is not stored."""
    tokenizer: Any = source.tokenizer
    if end_token is None:
        # A pool lists additional end tokens among its stop strings.
        stops = set(spec.stop if spec is not None else ()) - set(tokenizer.get_added_vocab())
        end_token = "" if stops else tokenizer.eos_token or ""
    encoder = TextEncoder(tokenizer, end_token, source.context)
    _ = encoder.end_ids  # raises ConfigError for a text that is not a single token
    return encoder


def prompt_ids(prepared: Prepared) -> list[list[int]]:
    return [[i for i in prompt if isinstance(i, int)] for prompt in prepared.prompts]


def was_truncated(spec: PoolSpec, status: str, sampled: int | None, tokens: int) -> bool:
    """Whether the length limit ended a completion: its number of tokens as `sampled`, and of its text, `tokens`.

    The verdict says so only where no answer was found. Otherwise a completion of the full length ended by itself if its
    text has fewer tokens: the missing one is the end token.
    """
    if status == "truncated":
        return True
    return sampled is not None and sampled == spec.max_new_tokens and tokens >= sampled
