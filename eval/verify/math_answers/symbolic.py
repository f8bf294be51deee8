"""Computer algebra of last resort: math-verify, as a job for a killable worker.

Imported only inside workers. Its timeouts (signals) are off: the worker's deadline is the only clock. Two guards are
added. It sees only what it can read whole: its search for any number in a text would find 5 in `3 \\implies 5`, that
for a fraction 1/2 in `2^\\frac{1}{2}\\}`, and it reads `5 5` as 10, `5'` as 5 and `5 \\approx 6` as 5. And two numbers
that it calls equal must agree to five digits (it compares after rounding to six places, so 1/2004! equals 1/2006!).
"""

import functools
import logging
import re
from typing import Any

from math_verify import LatexExtractionConfig, parse, verify

logging.getLogger("math_verify").setLevel(logging.ERROR)
RELATIVE = 2e-5
MISREAD = re.compile(r"(?:^|[^\d.^_])[\d.]+\s+\d|'|\\(?:boxed|fbox|approx)")


def judge(job: dict[str, str]) -> dict[str, bool]:
    """Whether gold and answer can be read at all, and whether they say the same."""
    gold, answer = read(job["gold"]), read(job["answer"])
    same = bool(gold) and bool(answer) and bool(compare(gold, answer))
    return {"gold_read": bool(gold), "answer_read": bool(answer), "same": same}


@functools.lru_cache(maxsize=256)
def read(text: str) -> tuple[Any, ...]:
    """The sympy objects math-verify sees in one answer; empty if it sees none."""
    if MISREAD.search(text):
        return ()
    targets = [LatexExtractionConfig(boxed_match_priority=0)]
    # first_match: the box, which is all of the text, and nothing that other patterns find in it.
    box = f"\\boxed{{{text}}}"
    found = parse(box, targets, "no_fallback", extraction_mode="first_match", parsing_timeout=None)
    return tuple(item for item in found if not isinstance(item, str))


def compare(gold: tuple[Any, ...], answer: tuple[Any, ...]) -> bool:
    same = verify(list(gold), list(answer), allow_set_relation_comp=True, timeout_seconds=None)
    return same and all(_close(g, a) for g in gold for a in answer)


def _close(gold: Any, answer: Any) -> bool:
    """True unless both are plain numbers that differ in the first five digits."""
    if not (getattr(gold, "is_number", False) and getattr(answer, "is_number", False)):
        return True
    try:
        left, right = gold.evalf(30), answer.evalf(30)
        return bool(abs(left - right) <= RELATIVE * abs(left))
    except (TypeError, ValueError, AttributeError):  # not comparable as numbers: nothing to add to the verdict
        return True
