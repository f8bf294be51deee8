"""From stored text back to the tokens that are scored: what can be known of them, and what cannot.

The prompt is tokenised as it is for sampling (`engines.prompts`). The completion's text is tokenised by itself, so that
no token spans the border, and is followed by one end token if the completion was not cut. A text has several spellings
in tokens and the one that was drawn is not stored: where the numbers of tokens differ, it was another one for certain.
"""

from dataclasses import dataclass
from typing import Any

from offleash.eval.engines.model import ModelSource, token_ids
from offleash.eval.pool.spec import PoolSpec


@dataclass(frozen=True, slots=True)
class TextEncoder:
    """`end_token` "" appends none; `context` None is a model without a known limit."""

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
    """`end_token` None is the tokenizer's own; none at all for a pool with stop texts, which may have ended it too."""
    tokenizer: Any = source.tokenizer
    if end_token is None:
        # A pool lists further end tokens beside the stop texts.
        stops = set(spec.stop if spec is not None else ()) - set(tokenizer.get_added_vocab())
        end_token = "" if stops else tokenizer.eos_token or ""
    encoder = TextEncoder(tokenizer, end_token, source.context)
    _ = encoder.end_ids  # a text that is not one token is refused here
    return encoder


def was_cut(spec: PoolSpec, status: str, drawn: int | None, spelled: int) -> bool:
    """Whether the length limit ended a completion: `drawn` tokens as recorded, `spelled` in its text.

    A verdict says so only where no answer was found. Else a completion of full length ended by itself if its text has
    fewer tokens: the other is the end token.
    """
    if status == "truncated":
        return True
    return drawn is not None and drawn == spec.max_new_tokens and spelled >= drawn
