"""Problems whose answer is a number or a formula (GSM8K, MATH, AIME), judged by value.

A problem's metadata may say more. With `choices` the gold is a letter, and an answer that spells an option out counts
as its letter. With `precision` an answer is rounded to that many decimals first, as MathVista does. A task with a
`tolerance` accepts a number that close to the gold, relative to it, as SciBench does (0.05).
"""

import hashlib
from collections.abc import Sequence
from fractions import Fraction
from importlib.metadata import version

from offleash.eval.errors import ConfigError
from offleash.eval.problem import Problem, Verdict
from offleash.eval.tasks.answer_task import Answered, AnswerTask
from offleash.eval.verify.extract import MATH_STEPS, Found, Step, extract, final_phrase, last_number
from offleash.eval.verify.math_answers.answers import answer_class, compare, is_near
from offleash.eval.verify.math_answers.mathematics import MathVerifier
from offleash.eval.verify.math_answers.normalize import normalize, unwrap_text
from offleash.eval.verify.math_answers.shapes import understand

NUMBER_STEPS: tuple[Step, ...] = (*MATH_STEPS, ("phrase", final_phrase), ("last_number", last_number))
LETTERS = "ABCDEFGHIJ"
MAX_ROUNDED = 10**100  # a larger value is no measurement, and is judged as it is written
VERDICTS, VALUES = "3", "2"  # bump with every change that could change a verdict


class MathAnswers(AnswerTask):
    """`steps` is the extraction cascade: boxes and answer tags, `NUMBER_STEPS` for tasks answered in prose (GSM8K)."""

    def __init__(
        self,
        name: str,
        problems: Sequence[Problem],
        *,
        steps: Sequence[Step] = MATH_STEPS,
        thinking: bool = False,
        tolerance: float = 0.0,
        verifier: MathVerifier | None = None,
    ) -> None:
        super().__init__(name, problems, thinking=thinking)
        ids = [problem.id for problem in problems]
        if len(set(ids)) < len(ids):
            raise ConfigError(f"task {name!r} has duplicated problem ids, such as {max(ids, key=ids.count)!r}")
        self.steps, self.tolerance = tuple(steps), Fraction(str(tolerance))
        self.verifier = verifier or MathVerifier()
        cascade = ",".join(step for step, _ in self.steps)
        extraction, values = _short_hash(f"{cascade}|{thinking}"), _short_hash(f"{VALUES}|{tolerance}")
        self.version = f"math-{VERDICTS}-{version('math-verify')}-{extraction}-value-{values}"

    def find(self, problem: Problem, completion: str) -> Found:
        return canonical(problem, extract(completion, self.steps, opened=self.thinking))

    def judge_answers(self, answered: Answered) -> list[Verdict]:
        judged = self.verifier.judge([problem.gold for problem, _ in answered], [answer for _, answer in answered])
        return [
            Verdict(answer_class(problem.gold), True, "ok")
            if self.tolerance and not one.correct and is_near(problem.gold, answer, self.tolerance)
            else Verdict(one.answer, one.correct, one.status, message=one.message)
            for (problem, answer), one in zip(answered, judged, strict=True)
        ]

    def correct_answers(self, problem: Problem) -> tuple[str, ...]:
        return (answer_class(problem.gold),)

    def gold_faults(self) -> list[tuple[str, str]]:
        bad = self.verifier.unreadable(problem.gold for problem in self.problems)
        faults = [(p.id, f"gold {p.gold[:60]!r} {bad[p.gold]}") for p in self.problems if p.gold in bad]
        strange = [p for p in self.problems if p.gold not in bad and "choices" in p.meta and not names_a_choice(p)]
        return faults + [
            (p.id, f"gold {p.gold[:60]!r} is not one of the {len(p.meta['choices'])} options") for p in strange
        ]

    def gold_completion(self, problem: Problem) -> str:
        return f"\\boxed{{{problem.gold}}}"


def _short_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def names_a_choice(problem: Problem) -> bool:
    return len(problem.gold) == 1 and problem.gold in LETTERS[: len(problem.meta["choices"])]


def canonical(problem: Problem, found: Found) -> Found:
    """The answer in the notation of its gold: the letter of an option, or a fixed number of decimals."""
    if found.answer is None:
        return found
    if "choices" in problem.meta:
        letter = letter_of(found.answer, problem.meta["choices"])
        return found if letter is None else Found(letter, found.extracted_by)
    places, answer = problem.meta.get("precision"), understand(found.answer)
    value = answer.reading.value if places is not None and answer.reading is not None and not answer.base else None
    if value is None or abs(value) > MAX_ROUNDED:
        return found
    return Found(decimal(value, int(places or 0)) + ("%" if answer.percent else ""), found.extracted_by)


def letter_of(answer: str, choices: Sequence[str]) -> str | None:
    """The letter of the option that an answer spells out; None if it names a letter itself, or no single option."""
    text = unwrap_text(normalize(answer))
    if len(text.strip("(). ")) == 1 and text.strip("(). ").upper() in LETTERS[: len(choices)]:
        return None
    same = [index for index, choice in enumerate(choices) if unwrap_text(normalize(choice)) == text]
    same = same or [index for index, choice in enumerate(choices) if compare(choice, answer)]
    return LETTERS[same[0]] if len(same) == 1 and same[0] < len(LETTERS) else None


def decimal(value: Fraction, places: int) -> str:
    """Written with that many decimals, exactly."""
    scaled = round(value * 10**places)
    if places <= 0:
        return str(scaled)
    digits = str(abs(scaled)).rjust(places + 1, "0")
    return f"{'-' if scaled < 0 else ''}{digits[:-places]}.{digits[-places:]}"
