"""The frame of every task whose answers are found in longer completions: find the answer, judge it, or say why not."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from offleash.eval.problem import Problem, Status, Verdict
from offleash.eval.verify.extract import Found

Answered = Sequence[tuple[Problem, str]]


class AnswerTask(ABC):
    """Problems whose prompts are ready. `thinking` says that the chat template opens a think block itself."""

    version: str

    def __init__(self, name: str, problems: Sequence[Problem], *, thinking: bool = False) -> None:
        self.name, self.thinking = name, thinking
        self.problems: Sequence[Problem] = list(problems)

    @abstractmethod
    def find(self, problem: Problem, completion: str) -> Found:
        """The answer in a completion."""

    @abstractmethod
    def judge_answers(self, answered: Answered) -> list[Verdict]:
        """One verdict per answer."""

    def verify(
        self, problems: Sequence[Problem], completions: Sequence[str], truncated: Sequence[bool] | None = None
    ) -> list[Verdict]:
        found = [self.find(*pair) for pair in zip(problems, completions, strict=True)]
        answered = [(p, one.answer) for p, one in zip(problems, found, strict=True) if one.answer is not None]
        judged = iter(self.judge_answers(answered))
        verdicts = []
        flags = [False] * len(found) if truncated is None else truncated
        for one, cut in zip(found, flags, strict=True):
            if one.answer is None:
                verdicts.append(Verdict(None, False, "truncated" if cut else "no_answer"))
            else:
                verdict = next(judged)
                verdicts.append(Verdict(verdict.answer, verdict.correct, verdict.status, one.extracted_by))
        return verdicts

    def correct_answers(self, problem: Problem) -> tuple[str, ...] | None:
        """None: one unit per problem, as the paper counts; any answer that is accepted."""
        return None


class SlowTask(AnswerTask):
    """Judges each distinct answer to a problem once; failures of the verifier are tried again by the next call."""

    def __init__(self, name: str, problems: Sequence[Problem], *, thinking: bool = False) -> None:
        super().__init__(name, problems, thinking=thinking)
        self.known: dict[tuple[str, str], tuple[Status, bool]] = {}

    @abstractmethod
    def score(self, pairs: list[tuple[str, str]]) -> dict[tuple[str, str], tuple[Status, bool]]:
        """Status and correctness of each (problem id, answer)."""

    @abstractmethod
    def answer_class(self, problem: Problem, answer: str, correct: bool) -> str: ...

    def judge_answers(self, answered: Answered) -> list[Verdict]:
        self.known = {pair: done for pair, done in self.known.items() if done[0] == "ok"}
        self.known |= self.score(sorted({(problem.id, answer) for problem, answer in answered} - self.known.keys()))
        verdicts = []
        for problem, answer in answered:
            status, correct = self.known[problem.id, answer]
            verdicts.append(Verdict(self.answer_class(problem, answer, correct), correct, status))
        return verdicts
