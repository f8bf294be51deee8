"""Answers judged as text: as the same words, by LiveBench's rules for its tasks, or by a language model.

A `Rule` finds the one answer of a reply and says when it equals the gold. LiveBench's follow its scorers, except that a
reply has a single answer, its last: there, a list of guesses wins if any of them is right. Think blocks are left out
first.
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

VERDICTS = "2"  # bump with every change that could change a verdict
MAX_CLASS = 120
MAX_TEXT = 1 << 16
BOLD = re.compile(r"\*\*([^*]{1,1000})\*\*")
TRUTHS = re.compile(r"\b(yes|no|unknown)\b", re.IGNORECASE)
TRIPLE = re.compile(r"\b(?:yes|no|unknown)(?:,\s{0,9}(?:yes|no|unknown)){2}\b", re.IGNORECASE)
NUMBER_WORDS = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen", "twenty",
)  # fmt: skip
SHAPES = ("tetrahedra", "tetrahedron", "triangle", "square")
BESIDE_SHAPES = {*NUMBER_WORDS, *map(str, range(21)), "a", "an", "the", "equilateral", "identical", "regular"}


ANSWER_STEPS: tuple[Step, ...] = (*MATH_STEPS, ("phrase", final_phrase), ("whole", rest))
TEXT_COMMAND = re.compile(r"\\(?:text|mathrm|textbf|textit|mathbf)\{([^{}]{0,2000})\}")
EXACT = "exact"


@dataclass(frozen=True, slots=True)
class Rule:
    answer: Callable[[str], str | None]
    same: Callable[[str, str], bool]
    shown: str
    """A reply that gives the gold, with {gold} in its place."""


def last_solution(text: str) -> str | None:
    """What is between the last <solution> and the </solution> that follows it."""
    end = text.rfind("</solution>")
    start = text.rfind("<solution>", 0, end) if end >= 0 else -1
    return text[start + len("<solution>") : end] if start >= 0 else None


def last_bold(text: str) -> str | None:
    """What is in bold, the last of it; a label, which ends in a colon, is none."""
    bold = [one for one in BOLD.findall(text) if not one.rstrip().endswith(":")]
    return bold[-1] if bold else None


def marked(text: str) -> str | None:
    """What a reply marks as its answer: in its last solution tag, else in bold, else in a box."""
    return next((found for step in (last_solution, last_bold, last_boxed) if (found := step(text)) is not None), None)


def truths(text: str) -> str | None:
    """Three of yes, no and unknown: in the last solution tag, the last three in bold, in a box, or in a row."""
    plain = TRIPLE.findall(text)
    for place in (last_solution(text), " ".join(BOLD.findall(text)), last_boxed(text), plain[-1] if plain else None):
        words = [word.lower() for word in TRUTHS.findall(place or "")][-3:]
        if words:
            return ", ".join(words)
    return None


def same_word(gold: str, answer: str) -> bool:
    """The same word or number, a number spelled out included; "two tetrahedra" are "tetrahedra"."""
    gold, answer = plain_word(gold), plain_word(answer)
    if answer == gold:
        return True
    beside = [word for word in answer.split() if word != gold]
    return gold in SHAPES and len(beside) == len(answer.split()) - 1 and BESIDE_SHAPES.issuperset(beside)


def plain_word(text: str) -> str:
    word = text.strip().strip(".:").strip().lower()
    return str(NUMBER_WORDS.index(word)) if word in NUMBER_WORDS else word


def joined_lines(text: str) -> str | None:
    """The last solution tag, or all of the reply, on one line."""
    text = last_solution(text) or text
    return " ".join(line for line in text.split("\n") if line) if text.strip() else None


def ends_with_text(gold: str, answer: str) -> bool:
    """The gold word for word at the end, with less around it than a second version of the text would take."""
    return gold in answer[-(3 * len(gold) // 2) :]


def plain_answer(text: str) -> str | None:
    """What is in the last box or answer tag, after the last `Answer:`, or the whole of a short reply."""
    return extract(text, ANSWER_STEPS).answer


def same_text(gold: str, answer: str) -> bool:
    """The same text but for case, white space, quotes around it, and a period at its end."""
    return bare_text(gold) == bare_text(answer)


def bare_text(text: str) -> str:
    inside = TEXT_COMMAND.fullmatch(text.strip())
    line = " ".join((inside[1] if inside else text).split())
    line = line.removesuffix(".").rstrip()
    quoted = len(line) > 2 and line[0] == line[-1] and line[0] in "\"'`"
    return (line[1:-1].strip() if quoted else line).casefold()


RULES: dict[str, Rule] = {
    EXACT: Rule(plain_answer, same_text, "<answer>{gold}</answer>"),
    "web_of_lies_v2": Rule(truths, lambda gold, answer: gold.strip().lower() == answer, "**{gold}**"),
    "spatial": Rule(marked, same_word, "**{gold}**"),
    "typos": Rule(joined_lines, ends_with_text, "{gold}"),
}


class TextAnswers(AnswerTask):
    """Problems whose metadata names their rule under `task`; without it, the answer is the gold text."""

    def __init__(self, name: str, problems: Sequence[Problem], *, thinking: bool = False) -> None:
        unknown = sorted({rule_name(problem) for problem in problems} - RULES.keys())
        if unknown:
            raise ConfigError(f"task {name!r}: no rule for {', '.join(unknown)}; there are {', '.join(RULES)}")
        super().__init__(name, problems, thinking=thinking)
        self.version = f"text-{VERDICTS}-{'think' if thinking else 'plain'}"

    def find(self, problem: Problem, completion: str) -> Found:
        text, _ = visible(completion, self.thinking)
        name = rule_name(problem)
        answer = RULES[name].answer((text or "")[-MAX_TEXT:])
        return Found(None, "") if answer is None else Found(answer, name)

    def judge_answers(self, answered: Answered) -> list[Verdict]:
        verdicts = []
        for problem, answer in answered:
            correct = RULES[rule_name(problem)].same(problem.gold, answer)
            verdicts.append(Verdict(class_of(problem.gold, answer, correct), correct, "ok"))
        return verdicts

    def gold_faults(self) -> list[tuple[str, str]]:
        return [(problem.id, "gold is empty") for problem in self.problems if not problem.gold.strip()]

    def gold_completion(self, problem: Problem) -> str:
        return RULES[rule_name(problem)].shown.format(gold=problem.gold)


def rule_name(problem: Problem) -> str:
    return str(problem.meta.get("task", EXACT))


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
