"""From problems to prompts: tokenized once, so that every engine and both sides of a comparison get the same tokens.

Template `auto` puts chat messages through the tokenizer's chat template, if it has one; text stays text. `plain` never
uses a template. Messages without a template become their texts, a blank line between them and a line end after the
last. Any other value is a file with a Jinja chat template that replaces the tokenizer's.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from offleash.eval.engines.base import Prompt
from offleash.eval.errors import ConfigError
from offleash.eval.fingerprint import canonical_json, template_fingerprint
from offleash.eval.problem import Part, Problem, chat_text


@dataclass(frozen=True, slots=True)
class Prepared:
    """The prompts as engines take them, the template's fingerprint, and its description."""

    prompts: list[Prompt]
    template: str
    words: str

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt; 0 if they were not tokenized here."""
        return max((len(p) for p in self.prompts if all(isinstance(i, int) for i in p)), default=0)


def prepare_prompts(
    problems: Sequence[Problem],
    tokenizer: Any | None,
    template: str = "auto",
    arguments: Mapping[str, Any] | None = None,
) -> Prepared:
    """Prompts of problems; without a tokenizer a server gets text and messages as they are, and uses its own template.

    `arguments` go to the chat template (such as {"enable_thinking": false}).
    """
    arguments = dict(arguments or {})
    if tokenizer is None:
        return _for_server(problems, template, arguments)
    if template not in ("auto", "plain"):
        tokenizer.chat_template = _template_text(template)
    is_chat = any(not isinstance(problem.prompt, str) for problem in problems)
    templated = is_chat and template != "plain" and bool(tokenizer.chat_template)
    if arguments and not templated:
        raise ConfigError(
            f"template arguments {canonical_json(arguments)} were given, but no prompt has a chat template"
        )
    prompts: list[Prompt] = [_ids(problem, tokenizer, templated, arguments) for problem in problems]
    mark = template_fingerprint(tokenizer, arguments)
    if not is_chat:
        return Prepared(prompts, mark, "none: the prompts are text")
    if not templated:
        why = "" if tokenizer.chat_template else " (the tokenizer has none)"
        return Prepared(prompts, f"plain:{mark}", f"plain, messages as text{why}")
    words = "the tokenizer's chat template" if template == "auto" else f"the chat template in {template}"
    return Prepared(prompts, mark, words + (f" with {canonical_json(arguments)}" if arguments else ""))


def _for_server(problems: Sequence[Problem], template: str, arguments: Mapping[str, Any]) -> Prepared:
    if template not in ("auto", "plain") or arguments:
        raise ConfigError("a custom template needs tokenizer (--tokenizer): without it the server applies its own")
    texts = [isinstance(problem.prompt, str) for problem in problems]
    if all(texts) or template == "plain":
        prompts: list[Prompt] = [_flat(problem) for problem in problems]
        return Prepared(prompts, "server:text", "none: the prompts are sent as text")
    if any(texts):
        raise ConfigError(
            "this task has text and chat prompts; give template plain (--template), or tokenizer (--tokenizer)"
        )
    return Prepared([problem.prompt for problem in problems], "server:chat", "the server's chat template")


def _ids(problem: Problem, tokenizer: Any, templated: bool, arguments: Mapping[str, Any]) -> list[int]:
    if templated and not isinstance(problem.prompt, str):
        other = _not_text(problem)
        messages = [{**message, "content": chat_text([message], other=other)} for message in problem.prompt]
        ids = tokenizer.apply_chat_template(
            messages, tokenize=True, add_generation_prompt=True, return_dict=False, **arguments
        )
    else:
        ids = tokenizer(_flat(problem))["input_ids"]
    if not ids:
        raise ConfigError(f"problem {problem.id!r} has an empty prompt")
    return [int(i) for i in ids]


def _flat(problem: Problem) -> str:
    """The prompt as plain text."""
    if isinstance(problem.prompt, str):
        return problem.prompt
    return chat_text(problem.prompt, between="\n\n", other=_not_text(problem)) + "\n"


def _not_text(problem: Problem) -> Callable[[Part], str]:
    def fail(part: Part) -> str:
        raise ConfigError(
            f"problem {problem.id!r} holds {part['type']}, which cannot be tokenized here: serve the model and sample "
            "it with engine openai, without a tokenizer"
        )

    return fail


def _template_text(name: str) -> str:
    try:
        return Path(name).read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"template must be auto, plain or a file with a chat template; {name!r} cannot be read: {error.strerror}"
        ) from error
