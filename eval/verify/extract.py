"""Where the answer is in a completion: one short cascade, the same for every model, and it says which step found it.

A think block that is closed is skipped: only what follows it counts. One that never closes means no answer. Without
tags the whole completion counts. Then the first step that finds something wins; `<answer>` and `\\boxed` take their
last use.
"""

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

OPEN, CLOSE = "<think>", "</think>"
MAX_SCAN = 1 << 20  # only the tail is searched: answers come at the end
MAX_REST = 400
MAX_BOXES, MAX_BOX = 20, 20_000  # how many boxes are tried from the end, and how long one may be

Step = tuple[str, Callable[[str], str | None]]


class Found(NamedTuple):
    """An answer and the step that found it; (None, "") if none did."""

    answer: str | None
    extracted_by: str


def extract(completion: str, steps: Sequence[Step], *, opened: bool = False) -> Found:
    """The answer in a completion. `opened` says that the prompt itself ended in an open think block.

    A short text that follows a closed think block is the answer if no step finds one.
    """
    body, closed = visible(completion, opened)
    if body is None:
        return Found(None, "")
    for name, step in steps:
        answer = step(body)
        if answer is not None and (cleaned := clean(answer)):
            return Found(cleaned, name)
    if closed and (short := rest(body)) is not None:
        return Found(short, "after_think")
    return Found(None, "")


def visible(completion: str, opened: bool) -> tuple[str | None, bool]:
    """The text outside think blocks, and whether one was closed before it; (None, False) if one never closes."""
    tail = completion[-MAX_SCAN:]
    close = tail.rfind(CLOSE)
    if tail.rfind(OPEN) > close or (close < 0 and (opened or (len(completion) > MAX_SCAN and OPEN in completion))):
        return None, False
    return (tail[close + len(CLOSE) :], True) if close >= 0 else (tail, False)


def clean(answer: str) -> str:
    """Without surrounding space, and without markdown bold around it."""
    answer = answer.strip()
    while len(answer) > 4 and answer.startswith("**") and answer.endswith("**"):
        answer = answer[2:-2].strip()
    return answer


BOXED = re.compile(r"\\(?:boxed|fbox)\s{0,20}")
BARE = re.compile(r"[-+]?[\w.,/]{1,100}")
BRACE = re.compile(r"\\.|[{}]", re.DOTALL)


def last_boxed(text: str) -> str | None:
    """What is in the last complete \\boxed{...}, the innermost if they are nested; `\\boxed 5` counts as well."""
    end = len(text)
    for _ in range(MAX_BOXES):
        start = max(text.rfind("\\boxed", 0, end), text.rfind("\\fbox", 0, end))
        if start < 0:
            return None
        if (match := BOXED.match(text, start)) and (inside := boxed_after(match)) is not None:
            return inside
        end = start
    return None


def boxed_after(command: re.Match[str]) -> str | None:
    """The content of the box whose command was matched; None if it never closes."""
    text, start = command.string, command.end()
    if text[start : start + 1] == "{":
        end = closing_brace(text, start)
        return None if end is None else text[start + 1 : end]
    bare = BARE.match(text, start) if command.group()[-1].isspace() else None
    return bare.group().rstrip(".,") if bare else None


def closing_brace(text: str, start: int) -> int | None:
    """The index of the brace that closes the one at `start`, not too far away; escaped braces do not count."""
    depth = 0
    for match in BRACE.finditer(text, start, start + MAX_BOX):
        if match.group() == "{":
            depth += 1
        elif match.group() == "}":
            depth -= 1
            if depth == 0:
                return match.start()
    return None


def last_answer_tag(text: str) -> str | None:
    """What is between the last <answer> and the </answer> that follows it."""
    end = text.rfind("</answer>")
    start = text.rfind("<answer>", 0, end) if end >= 0 else -1
    return text[start + len("<answer>") : end] if start >= 0 else None


PHRASE = re.compile(
    r"(?:####|(?:^|\n)[ \t]{0,20}(?:final )?(?:answer|a) ?:|answer is ?:?)[ \t]{0,20}([^\n]{1,200})",
    re.IGNORECASE,
)


def final_phrase(text: str) -> str | None:
    """The rest of the line after the last `#### `, `Answer:`, `A:` or `the answer is`."""
    found = PHRASE.findall(text[-20000:].replace("**", ""))
    if not found:
        return None
    line: str = found[-1].strip()
    return re.split(r"\.(?:\s|$)", line, maxsplit=1)[0].strip() or None


NUMBER = re.compile(r"-?\$?\d[\d,]*(?:\.\d+)?(?:/\d+)?%?|-?\.\d+")


def last_number(text: str) -> str | None:
    """The last number in the text: the weakest step, for tasks whose answers are numbers."""
    found = NUMBER.findall(text[-4000:])
    return found[-1].rstrip(",") if found else None


def rest(text: str) -> str | None:
    """The whole text if it is short enough to be an answer."""
    text = text.strip()
    return clean(text) if text and len(text) <= MAX_REST else None


MATH_STEPS: tuple[Step, ...] = (("boxed", last_boxed), ("answer_tag", last_answer_tag))
TAGGED_STEPS: tuple[Step, ...] = (("answer_tag", last_answer_tag), ("boxed", last_boxed))
