"""Answers judged as text: by LiveBench's own rules for its reasoning and language tasks, or by a language model.

A `Rule` lists the candidate answers in a reply, likeliest first, and says when one equals the gold: a reply is correct
if any candidate is. The rules follow LiveBench's scorers; think blocks are left out first.
"""

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from offleash.eval.errors import ConfigError
from offleash.eval.problem import Problem, Status, Verdict
from offleash.eval.tasks.answer_task import Answered, AnswerTask
from offleash.eval.verify.extract import MATH_STEPS, Found, Step, extract, final_phrase, last_boxed, rest, visible
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


def joined_lines(text: str) -> list[str]:
    return [" ".join(line for line in text.split("\n") if line)] if text.strip() else []


RULES: dict[str, Rule] = {
    "web_of_lies_v2": Rule(truths, lambda gold, answer: gold.strip().lower() == answer, "**{gold}**"),
    "spatial": Rule(marked, same_word, "**{gold}**"),
    "typos": Rule(joined_lines, lambda gold, answer: gold in answer, "{gold}"),
}


class TextAnswers(AnswerTask):
    """Problems whose metadata names their rule under `task`."""

    def __init__(self, name: str, problems: Sequence[Problem], *, thinking: bool = False) -> None:
        unknown = sorted({str(problem.meta.get("task")) for problem in problems} - RULES.keys())
        if unknown:
            raise ConfigError(f"task {name!r}: no rule for {', '.join(unknown)}; there are {', '.join(RULES)}")
        super().__init__(name, problems, thinking=thinking)
        self.version = f"text-{VERDICTS}-{'think' if thinking else 'plain'}"

    def find(self, problem: Problem, completion: str) -> Found:
        """All that a rule looks at, if it finds a candidate there."""
        text, _ = visible(completion, self.thinking)
        tail, task = (text or "")[-MAX_TEXT:], problem.meta["task"]
        return Found(tail, task) if RULES[task].candidates(tail) else Found(None, "")

    def judge_answers(self, answered: Answered) -> list[Verdict]:
        verdicts = []
        for problem, text in answered:
            rule = RULES[problem.meta["task"]]
            candidates = rule.candidates(text)
            correct = any(rule.same(problem.gold, candidate) for candidate in candidates)
            verdicts.append(Verdict(class_of(problem.gold, candidates[0], correct), correct, "ok"))
        return verdicts

    def gold_faults(self) -> list[tuple[str, str]]:
        return [(problem.id, "gold is empty") for problem in self.problems if not problem.gold.strip()]

    def gold_completion(self, problem: Problem) -> str:
        return RULES[problem.meta["task"]].shown.format(gold=problem.gold)


ANSWER_STEPS: tuple[Step, ...] = (*MATH_STEPS, ("phrase", final_phrase), ("whole", rest))


def judge_of(url: str, model: str, cache: Path) -> Judge | None:
    """None without a url: the problems can be sampled, and judged later."""
    if url and not model:
        raise ConfigError("judge_url needs judge_model, the model's name on that server")
    return Judge(url, model, cache) if url else None


class JudgedAnswers(AnswerTask):
    """Short factual answers, graded by a language model unless they equal the gold exactly.

    Without a judge the problems can be sampled but not verified.
    """

    def __init__(self, name: str, problems: Sequence[Problem], judge: Judge | None, *, thinking: bool = False) -> None:
        super().__init__(name, problems, thinking=thinking)
        self.judge = judge
        by = f"{judge.model}-{digest(judge.prompt)[:8]}" if judge is not None else f"nobody-{digest(PROMPT)[:8]}"
        self.version = f"judged-{VERDICTS}-{'think' if thinking else 'plain'}-{by}"

    def find(self, problem: Problem, completion: str) -> Found:
        return extract(completion, ANSWER_STEPS, opened=self.thinking)

    def judge_answers(self, answered: Answered) -> list[Verdict]:
        is_gold = [words(answer) == words(problem.gold) for problem, answer in answered]
        grades = iter(self._ask([pair for pair, known in zip(answered, is_gold, strict=True) if not known]))
        verdicts = []
        for (problem, answer), known in zip(answered, is_gold, strict=True):
            grade = Grade("A") if known else next(grades)
            status: Status = "error" if grade.letter is None else "ok"
            name = class_of(problem.gold, answer, grade.correct)
            verdicts.append(Verdict(name, grade.correct, status, message=grade.message))
        return verdicts

    def gold_faults(self) -> list[tuple[str, str]]:
        return [(problem.id, "gold is empty") for problem in self.problems if not words(problem.gold)]

    def gold_completion(self, problem: Problem) -> str:
        return f"\\boxed{{{problem.gold}}}" if problem.gold.count("{") == problem.gold.count("}") else problem.gold

    def close(self) -> None:
        if self.judge is not None:
            self.judge.close()

    def _ask(self, asked: Answered) -> list[Grade]:
        if not asked:
            return []
        if self.judge is None:
            raise ConfigError(
                f"answers to {self.name!r} are graded by a language model: give the task judge_url (an "
                "OpenAI-compatible server, .../v1) and judge_model"
            )
        return self.judge.grade([(problem.meta["question"], problem.gold, answer) for problem, answer in asked])


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
