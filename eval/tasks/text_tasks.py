"""Answers judged as text: by LiveBench's own rules for its reasoning and language tasks, or by a language model.

A `Rule` lists the candidate answers in a reply, likeliest first, and says when one equals the gold: a reply is correct
if any candidate is. The rules follow LiveBench's scorers; think blocks are left out first.
"""

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from offleash.eval.errors import ConfigError
from offleash.eval.problem import Problem, Verdict
from offleash.eval.verify.extract import (
    Found,
    Step,
    extract,
    final_phrase,
    last_answer_tag,
    last_boxed,
    rest,
    visible,
)
from offleash.eval.verify.judge import PROMPT, Grade, Judge

VERDICTS = "1"  # bump with every change that could change a verdict
MAX_CLASS = 120
MAX_TEXT = 1 << 16
BOLD = re.compile(r"\*\*([^*]+)\*\*")
SOLUTION = re.compile(r"<solution>(.*?)</solution>", re.DOTALL)
TRUTHS = re.compile(r"\b(yes|no|unknown)\b", re.IGNORECASE)
TRIPLE = re.compile(r"\b(?:yes|no|unknown)(?:,\s*(?:yes|no|unknown)){2}\b", re.IGNORECASE)
NUMBER_WORDS = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen", "twenty",
)  # fmt: skip
SHAPES = ("tetrahedra", "tetrahedron", "triangle", "square")


@dataclass(frozen=True, slots=True)
class Rule:
    candidates: Callable[[str], list[str]]
    same: Callable[[str, str], bool]
    shown: str
    """A reply that gives the gold, with {gold} in its place."""


def marked(text: str) -> list[str]:
    """What a reply marks as its answer, the last first: solution tags, else bold, else a box."""
    found = SOLUTION.findall(text)[::-1] or BOLD.findall(text)[::-1][:3]
    boxed = last_boxed(text)
    return found or ([boxed] if boxed else [])


def truths(text: str) -> list[str]:
    """Three of yes, no and unknown: in the last solution tag, the last three in bold, in a box, or in a row."""
    tagged, bold = SOLUTION.findall(text), " ".join(BOLD.findall(text))
    plain = TRIPLE.findall(text)
    for place in (tagged[-1] if tagged else "", bold, last_boxed(text) or "", plain[-1] if plain else ""):
        words = [word.lower() for word in TRUTHS.findall(place)][-3:]
        if words:
            return [", ".join(words)]
    return []


def same_word(gold: str, answer: str) -> bool:
    """The same word or number, a number spelled out included; "two tetrahedra" are "tetrahedra"."""
    gold, answer = plain_word(gold), plain_word(answer)
    return answer == gold or (gold in SHAPES and gold in answer and len(answer) < 2 * len(gold) + 5)


def plain_word(text: str) -> str:
    word = text.strip().strip(".:").strip().lower()
    return str(NUMBER_WORDS.index(word)) if word in NUMBER_WORDS else word


def _joined_lines(text: str) -> str:
    return " ".join(line for line in text.split("\n") if line)


RULES: dict[str, Rule] = {
    "web_of_lies_v2": Rule(truths, lambda gold, answer: gold.strip().lower() == answer, "**{gold}**"),
    "spatial": Rule(marked, same_word, "**{gold}**"),
    "typos": Rule(
        lambda text: [_joined_lines(text)] if text.strip() else [], lambda gold, answer: gold in answer, "{gold}"
    ),
}


class TextAnswers:
    """Problems whose metadata names their rule under `task`."""

    def __init__(self, name: str, problems: Sequence[Problem], *, thinking: bool = False) -> None:
        unknown = sorted({str(problem.meta.get("task")) for problem in problems} - RULES.keys())
        if unknown:
            raise ConfigError(f"task {name!r}: no rule for {', '.join(unknown)}; there are {', '.join(RULES)}")
        self.name, self.thinking = name, thinking
        self.problems: Sequence[Problem] = list(problems)
        self.version = f"text-{VERDICTS}-{'think' if thinking else 'plain'}"

    def verify(
        self, problems: Sequence[Problem], completions: Sequence[str], truncated: Sequence[bool] | None = None
    ) -> list[Verdict]:
        cut = [False] * len(completions) if truncated is None else truncated
        return [self._judge(*one) for one in zip(problems, completions, cut, strict=True)]

    def correct_answers(self, problem: Problem) -> None:
        """None: one unit per problem; any reply its rule accepts."""

    def gold_faults(self) -> list[tuple[str, str]]:
        return [(problem.id, "gold is empty") for problem in self.problems if not problem.gold.strip()]

    def gold_completion(self, problem: Problem) -> str:
        return RULES[problem.meta["task"]].shown.format(gold=problem.gold)

    def _judge(self, problem: Problem, completion: str, cut: bool) -> Verdict:
        rule = RULES[problem.meta["task"]]
        text, _ = visible(completion, self.thinking)
        candidates = rule.candidates(text[-MAX_TEXT:]) if text else []
        if not candidates:
            return Verdict(None, False, "truncated" if cut else "no_answer")
        correct = any(rule.same(problem.gold, candidate) for candidate in candidates)
        return Verdict(class_of(problem.gold, candidates[0], correct), correct, "ok", problem.meta["task"])


ANSWER_STEPS: tuple[Step, ...] = (
    ("boxed", last_boxed),
    ("answer_tag", last_answer_tag),
    ("phrase", final_phrase),
    ("whole", rest),
)


def judge_of(judge: Mapping[str, str | Path]) -> Judge | None:
    """None without a url: the problems can be sampled, and judged later."""
    if not judge["url"]:
        return None
    if not judge["model"]:
        raise ConfigError("judge_url needs judge_model, the model's name on that server")
    return Judge(str(judge["url"]), str(judge["model"]), Path(judge["cache"]))


class JudgedAnswers:
    """Short factual answers, graded by a language model unless they equal the gold exactly.

    Without a judge the problems can be sampled but not verified.
    """

    def __init__(self, name: str, problems: Sequence[Problem], judge: Judge | None, *, thinking: bool = False) -> None:
        self.name, self.judge, self.thinking = name, judge, thinking
        self.problems: Sequence[Problem] = list(problems)
        by = f"{judge.model}-{digest(judge.prompt)[:8]}" if judge is not None else f"nobody-{digest(PROMPT)[:8]}"
        self.version = f"judged-{VERDICTS}-{'think' if thinking else 'plain'}-{by}"

    def verify(
        self, problems: Sequence[Problem], completions: Sequence[str], truncated: Sequence[bool] | None = None
    ) -> list[Verdict]:
        cut = [False] * len(completions) if truncated is None else truncated
        found = [extract(completion, ANSWER_STEPS, opened=self.thinking) for completion in completions]
        asked = [
            index
            for index, (problem, one) in enumerate(zip(problems, found, strict=True))
            if one.answer is not None and words(one.answer) != words(problem.gold)
        ]
        grades = dict(zip(asked, self._ask(problems, found, asked), strict=True))
        return [
            judged(problem, one, grades.get(index), bool(cut[index]))
            for index, (problem, one) in enumerate(zip(problems, found, strict=True))
        ]

    def correct_answers(self, problem: Problem) -> None:
        """None: one unit per problem; any answer the judge accepts."""

    def gold_faults(self) -> list[tuple[str, str]]:
        return [(problem.id, "gold is empty") for problem in self.problems if not words(problem.gold)]

    def gold_completion(self, problem: Problem) -> str:
        return f"\\boxed{{{problem.gold}}}" if problem.gold.count("{") == problem.gold.count("}") else problem.gold

    def close(self) -> None:
        if self.judge is not None:
            self.judge.close()

    def _ask(self, problems: Sequence[Problem], found: Sequence[Found], asked: Sequence[int]) -> list[Grade]:
        if not asked:
            return []
        if self.judge is None:
            raise ConfigError(
                f"answers to {self.name!r} are graded by a language model: give the task judge_url (an "
                "OpenAI-compatible server, .../v1) and judge_model"
            )
        items = [(problems[i].meta["question"], problems[i].gold, found[i].answer or "") for i in asked]
        return self.judge.grade(items)


def judged(problem: Problem, found: Found, grade: Grade | None, cut: bool) -> Verdict:
    """No grade for an answer means that it is the gold itself."""
    if found.answer is None:
        return Verdict(None, False, "truncated" if cut else "no_answer")
    if grade is not None and grade.letter is None:
        return Verdict(class_of(problem.gold, found.answer, False), False, "error", found.extracted_by)
    correct = grade is None or grade.correct
    return Verdict(class_of(problem.gold, found.answer, correct), correct, "ok", found.extracted_by)


def words(text: str) -> str:
    """Without case, extra spaces, punctuation at the ends and a leading article."""
    return re.sub(r"^(?:the|a|an) ", "", " ".join(text.lower().split()).strip(" .,;:!?\"'"))


def class_of(gold: str, answer: str, correct: bool) -> str:
    """The gold's class if correct, never the gold's if not; long texts by their hash."""
    golden, own = short(gold), short(answer)
    if correct:
        return golden
    return own if own != golden else f"{own} (wrong)"


def short(text: str) -> str:
    text = words(text)
    return text if len(text) <= MAX_CLASS else f"#{digest(text)[:16]}"


def digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()
