"""Is this mathematical answer right, and what did it answer: the cheapest conclusive test first.

1. the verdict of this (gold, answer) pair, if it was judged before: k samples cost as many verifications as there are
distinct answers; 2. by value, in this process, in microseconds (`answers`); 3. math-verify in a killable worker, for
what the second step cannot read, if the answer passes the caps below. An answer over the caps that does not equal the
gold exactly is wrong, and so is one that uses up a worker's time or memory where the gold itself does not ("timeout").
A worker that fails otherwise gives status "error", which is not "wrong".
"""

import re
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import accumulate
from typing import Any, Literal

from offleash.eval.errors import ConfigError
from offleash.eval.verify.math_answers import answers
from offleash.eval.verify.math_answers.normalize import MAX_ANSWER_CHARS, normalize
from offleash.eval.verify.math_answers.shapes import CANONICAL
from offleash.eval.verify.sandbox.workers import Outcome, WorkerPool

MAX_CHARS, MAX_DEPTH, MAX_DIGITS, MAX_POWERS, MAX_ARGUMENT, MAX_COMMAS = 300, 12, 40, 8, 1000, 30
RETRIES = 2  # a pair that failed this often keeps its status


@dataclass(frozen=True, slots=True)
class Judgment:
    """The verdict on one (gold, answer) pair: the answer's class, whether it is correct, and how that was decided."""

    answer: str
    correct: bool
    status: Literal["ok", "timeout", "error"] = "ok"
    message: str = ""


class MathVerifier:
    """`judge(golds, answers)`: one judgment per pair. Safe from any thread; processes start only when needed."""

    def __init__(self, *, workers: int | None = None, job_seconds: float = 5.0, cache: int = 1 << 17) -> None:
        if find_spec("math_verify") is None:
            raise ConfigError("mathematical answers need math-verify: pip install 'offleash[math]'")
        target = "offleash.eval.verify.math_answers.symbolic:judge"
        self.pool = WorkerPool(target, workers=workers, job_seconds=job_seconds)
        self._cache: dict[tuple[str, str], Judgment] = {}
        self._failures: dict[tuple[str, str], int] = {}
        self._room = cache
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        """Without what it remembers."""
        return {"pool": self.pool, "_room": self._room}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state | {"_cache": {}, "_failures": {}, "_lock": threading.Lock()}

    def judge(self, golds: Sequence[str], replies: Sequence[str]) -> list[Judgment]:
        pairs = [(gold, shortened(reply)) for gold, reply in zip(golds, replies, strict=True)]
        known = {pair: self._cache[pair] for pair in set(pairs) if pair in self._cache}
        fresh = self._judge_new([pair for pair in dict.fromkeys(pairs) if pair not in known])
        self._remember(fresh)
        known |= fresh
        return [known[pair] for pair in pairs]

    def unreadable(self, golds: Iterable[str]) -> dict[str, str]:
        """Golds that cannot be used, with the reason: each must be read and must agree with itself."""
        bad, unclear = {}, []
        for gold in dict.fromkeys(golds):
            if not normalize(gold):
                bad[gold] = "is empty"
            elif len(gold) > MAX_ANSWER_CHARS:
                bad[gold] = f"is longer than {MAX_ANSWER_CHARS} characters"
            elif not answers.is_clear(answers.understand(gold)):
                unclear.append(gold)
        for gold, outcome in zip(unclear, self._ask([(gold, gold) for gold in unclear]), strict=True):
            if outcome.status != "ok":
                bad[gold] = f"could not be verified ({outcome.message})"
            elif not outcome.value["gold_read"]:
                bad[gold] = "cannot be parsed"
            elif not outcome.value["same"]:
                bad[gold] = "does not verify against itself"
        return bad

    def close(self) -> None:
        self.pool.close()

    def _judge_new(self, pairs: list[tuple[str, str]]) -> dict[tuple[str, str], Judgment]:
        verdicts = {pair: judge_here(*pair) for pair in pairs}
        undecided = [pair for pair, verdict in verdicts.items() if verdict is None]
        done = {pair: judgment(pair, verdict) for pair, verdict in verdicts.items() if verdict is not None}
        outcomes = dict(zip(undecided, self._ask(undecided), strict=True))
        golds = sorted({gold for (gold, _), outcome in outcomes.items() if outcome.exhausted})
        checked = self._ask([(gold, gold) for gold in golds])
        fine = {gold for gold, outcome in zip(golds, checked, strict=True) if outcome.status == "ok"}
        for pair, outcome in outcomes.items():
            same = outcome.status == "ok" and outcome.value["same"]
            done[pair] = judgment(pair, same, outcome, own_fault=outcome.exhausted and pair[0] in fine)
        return done

    def _ask(self, pairs: list[tuple[str, str]]) -> list[Outcome]:
        return self.pool.map([{"gold": spaced(gold), "answer": spaced(reply)} for gold, reply in pairs])

    def _remember(self, fresh: dict[tuple[str, str], Judgment]) -> None:
        """Failures are remembered after a few tries: an answer that always times out is not waited for again."""
        with self._lock:
            for pair, verdict in fresh.items():
                if verdict.status != "ok":
                    self._failures[pair] = self._failures.get(pair, 0) + 1
                    if self._failures[pair] < RETRIES:
                        continue
                self._cache[pair] = verdict
            while len(self._cache) > self._room:
                del self._cache[next(iter(self._cache))]


def shortened(reply: str) -> str:
    """Long replies are keyed by their beginning and their hash, to save memory."""
    return reply if len(reply) <= MAX_ANSWER_CHARS else answers.understand(reply).text


def judge_here(gold: str, reply: str) -> bool | None:
    """The verdict where no computer algebra is needed, None where it is."""
    if normalize(gold) == normalize(reply) and normalize(gold):
        return True
    if CANONICAL.fullmatch(reply.strip()) or not normalize(reply):
        return False  # a class is our notation, not an answer
    verdict = answers.compare(gold, reply)
    return False if verdict is None and over_the_caps(normalize(reply)) else verdict


def spaced(text: str) -> str:
    """With a space after every comma: without one math-verify takes 12,102 for a number, even in (12,102)."""
    return normalize(text).replace(",", ", ")


def judgment(
    pair: tuple[str, str], correct: bool, outcome: Outcome | None = None, *, own_fault: bool = False
) -> Judgment:
    """`own_fault`: the answer used up a worker that its gold does not."""
    name = answers.class_given_gold(*pair, correct)
    if outcome is None or outcome.status == "ok":
        return Judgment(name, correct)
    return Judgment(name, False, "timeout" if own_fault else "error", outcome.message)


DIGITS = re.compile(r"\d+")
HEAVY = re.compile(  # powers, factorials, binomials, sums and products with a large number in the wrong place
    r"\^\s*[{(]?\s*-?(\d+)|(\d+)\s*!|\\binom\D{0,9}(\d+)|\\(?:sum|prod)[^^]{0,40}\^\s*\{?\D{0,9}(\d+)|exp\D{0,20}exp\D{0,20}(\d+)"
)
OPENING, CLOSING = "({[", ")}]"


def over_the_caps(text: str) -> str | None:
    """Why a text is not shown to a computer algebra system; None if it may be."""
    if len(text) > MAX_CHARS:
        return f"{len(text)} characters"
    if depth(text) > MAX_DEPTH:
        return "nesting"
    if any(len(number) > MAX_DIGITS for number in DIGITS.findall(text)):
        return "digits"
    if text.count("^") > MAX_POWERS or (text.count("^") > 1 and tower(text)):
        return "powers"
    if text.count(",") > MAX_COMMAS:
        return "items"
    if any(int(n) > MAX_ARGUMENT for groups in HEAVY.findall(text) for n in groups if n):
        return "arguments"
    return None


def depth(text: str) -> int:
    steps = ((character in OPENING) - (character in CLOSING) for character in text)
    return max(accumulate(steps, initial=0))


def tower(text: str) -> bool:
    """A power inside an exponent."""
    open_braces: list[bool] = []  # whether each is an exponent's
    previous = ""
    for character in text.replace(" ", ""):
        if character == "^" and any(open_braces):
            return True
        if character == "{":
            open_braces.append(previous == "^")
        elif character == "}" and open_braces:
            open_braces.pop()
        previous = character
    return False
