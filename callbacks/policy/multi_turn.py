"""Rollouts of several turns: with tools, in environments, or by a rollout function, drawn as the trainer draws them.

The monitor plays in environments of its own, made by the trainer's factory. They are made once and reset for each
rollout, as TRL does with those of training.
"""

import hashlib
import inspect
import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from itertools import groupby
from typing import Any, NamedTuple

from offleash.callbacks.policy.trainer_protocol import PolicyTrainer
from offleash.callbacks.policy.trl_seam import (
    roll_out,
    rollout_features,
    rollout_settings,
    text_tokenizer,
    waits_at_every_turn,
)
from offleash.eval.code_fingerprint import verifier_fingerprint
from offleash.eval.errors import ConfigError
from offleash.eval.images import has_images
from offleash.eval.problem import Problem
from offleash.eval.sampling import Sampling
from offleash.eval.transcript import ASSISTANT, part, transcript


class Turns(NamedTuple):
    """One rollout: its tokens, its text, and whether it was cut off by a limit of tokens or of tool calls."""

    prompt_ids: list[int]
    ids: list[int]
    written: list[int]
    """1 for a token of the policy, 0 for any other."""
    completion: str
    truncated: bool
    reward: float | None


class MultiTurn:
    """Draws rollouts of rows. `reward`, if given, is taken of each as the trainer takes it."""

    def __init__(
        self, trainer: PolicyTrainer, rows: Sequence[dict[str, Any]], reward: Callable[..., Any] | None
    ) -> None:
        self.trainer, self.rows, self.reward = trainer, rows, reward
        self.features = rollout_features(trainer)
        self.environments: dict[str | None, list[Any]] = defaultdict(list)
        tokenizer = text_tokenizer(trainer)
        self.end_ids = {*trainer.eos_token_ids, tokenizer.pad_token_id}
        self.decode = partial(tokenizer.decode, skip_special_tokens=True)

    def draw(self, places: Sequence[int], num_generations: int) -> list[Turns]:
        """One rollout of the row at each place; a place stands `num_generations` times in a row. Collective."""
        rows = [self.rows[place] for place in places]
        found = roll_out(self.trainer, rows, num_generations, self.environments, self.reward)
        rewards: Sequence[float | None] = found.rewards or [None] * len(rows)
        columns = (found.prompt_ids, found.completion_ids, found.written, found.completions, rewards)
        return [self._turns(*row) for row in zip(*columns, strict=True)]

    def _turns(
        self, prompt_ids: list[int], ids: list[int], written: list[int], completion: Any, reward: float | None
    ) -> Turns:
        own = [token for token, by_policy in zip(ids, written, strict=True) if by_policy]
        is_open = not own or own[-1] not in self.end_ids
        if self.features == ["rollout_func"]:
            return Turns(prompt_ids, ids, written, self._by_writer(ids, written), is_open, reward)
        answered = completion[-1]["role"] == ASSISTANT and not completion[-1].get("tool_calls")
        return Turns(prompt_ids, ids, written, transcript(completion), is_open or not answered, reward)

    def _by_writer(self, ids: Sequence[int], written: Sequence[int]) -> str:
        """The tokens of a rollout function as a transcript: it says who wrote them, and nothing of messages."""
        parts = []
        for by_policy, group in groupby(zip(written, ids, strict=True), key=lambda pair: bool(pair[0])):
            text = self.decode([token for _, token in group])
            parts.append(part(ASSISTANT if by_policy else "environment", text))
        return "\n".join(parts)

    def fingerprint(self, template: str) -> str:
        """Of the template and of what else the samples depend on beyond prompts and sampling settings."""
        return hashlib.sha256(f"{template} {self._settings}".encode()).hexdigest()

    @cached_property
    def _settings(self) -> str:
        """As at the start: a tool may keep something between its calls."""
        settings = rollout_settings(self.trainer)
        settings["code"] = [_code(value) for value in settings["code"]]
        return json.dumps([settings, self.rows], sort_keys=True, default=str)


def check_multi_turn(trainer: PolicyTrainer, problems: Sequence[Problem], sampling: Sampling, own: Sampling) -> None:
    """Raise ConfigError where rollouts of several turns could not be drawn as asked.

    `sampling` is what the monitor asks for, `own` what the training rollouts are drawn with.
    """
    features = rollout_features(trainer)
    if any(map(has_images, problems)):
        raise ConfigError(
            f"the monitor cannot draw prompts with images through this trainer's {' and '.join(features)}"
        )
    if features != ["rollout_func"] and (waiting := waits_at_every_turn(trainer)):
        raise ConfigError(
            f"the monitor cannot draw with {' and '.join(features)} under {waiting} on several processes: a process "
            "takes as many turns as its rollouts need, and would wait for the others at each; use one process, ZeRO-2, "
            "or colocated vLLM without tensor parallelism"
        )
    if "rollout_func" in features and sampling != own:
        raise ConfigError(
            "a rollout_func samples with the settings that it chooses itself: leave temperature, top_p and "
            "max_new_tokens of the monitor out"
        )


def _code(value: Any) -> str:
    """The fingerprint of a tool, an environment or a rollout function, without the state that an object is in."""
    value = getattr(value, "__func__", value)
    is_code = inspect.isroutine(value) or inspect.isclass(value) or isinstance(value, partial)
    return verifier_fingerprint(value if is_code else type(value))
