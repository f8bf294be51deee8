"""A chat template that opens a think block, and tasks that must know it."""

from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from offleash.eval.errors import ConfigError
from offleash.eval.problem import Problem
from offleash.eval.tasks.math_tasks import MathAnswers
from offleash.train.preflight.chat import check_thinking

OPENS = (
    "{% for m in messages %}{{ m.content }}{% endfor %}{% if add_generation_prompt %}<think>"
    "{% if enable_thinking is false %}</think>{% endif %}{% endif %}"
)
ALWAYS_EMPTY = "{{ messages[0].content }}<think>\n\n</think>"


def tokenizer_with(template: str, lab_base: Path) -> Any:
    tokenizer = AutoTokenizer.from_pretrained(lab_base)
    tokenizer.chat_template = template
    return tokenizer


def task(*, thinking: bool, chat: bool = True) -> MathAnswers:
    prompt: Any = [{"role": "user", "content": "1 + 1?"}] if chat else "1 + 1?"
    return MathAnswers("sums", [Problem("a", prompt, "2")], thinking=thinking)


def test_answers_in_a_thought_that_never_ends_are_refused_where_the_template_opens_it(lab_base: Path) -> None:
    with pytest.raises(ConfigError, match=r"'sums'.*thinking: true"):
        check_thinking(tokenizer_with(OPENS, lab_base), None, task(thinking=True), task(thinking=False))


@pytest.mark.parametrize(
    ("template", "arguments", "thinking", "chat"),
    [
        (OPENS, None, True, True),
        (OPENS, {"enable_thinking": False}, False, True),  # the block is closed at once
        (OPENS, None, False, False),  # prompts of plain text have no template
        (ALWAYS_EMPTY, None, False, True),
        ("{{ messages[0].content }}", None, False, True),
        ("{{ messages[0].content }}", None, True, True),  # the model may open the block itself
    ],
)
def test_everything_else_passes(template, arguments, thinking, chat, lab_base: Path) -> None:
    check_thinking(tokenizer_with(template, lab_base), arguments, task(thinking=thinking, chat=chat))
