"""The frame of tasks that judge the text of a completion: most find the answer in it, judge it, or say why not."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from offleash.eval.problem import Problem, Status, Verdict
from offleash.eval.verify.extract import Found
from offleash.eval.verify.health import gold_reply
from offleash.eval.verify.sandbox.workers import Outcome
from offleash.eval.verify.verdicts import verdicts_of

Answered = Sequence[tuple[Problem, str]]


class TextTask(ABC):
    """Problems whose prompts are ready. `thinking` says that the chat template opens a think block itself."""

    version: str

    def __init__(self, name: str, problems: Sequence[Problem], *, thinking: bool = False) -> None:
        self.name, self.thinking = name, thinking
        self.problems: Sequence[Problem] = list(problems)

    @abstractmethod
    def verdicts(self, problems: Sequence[Problem], completions: Sequence[str], cut: Sequence[bool]) -> list[Verdict]:
        """One verdict per completion; `cut` says which hit the length limit."""

    def verify(
        self, problems: Sequence[Problem], completions: Sequence[str], truncated: Sequence[bool] | None = None
    ) -> list[Verdict]:
        return verdicts_of(self._verify, problems, completions, truncated)

    def _verify(
        self, problems: Sequence[Problem], completions: Sequence[str], truncated: Sequence[bool] | None = None
    ) -> list[Verdict]:
        return self.verdicts(problems, completions, [False] * len(problems) if truncated is None else truncated)

    def correct_answers(self, problem: Problem) -> tuple[str, ...] | None:
        """None: one unit per problem, as the paper counts; any answer that is accepted."""
        return None


class AnswerTask(TextTask):
    """Finds the answer in a completion first, and judges answers."""

    @abstractmethod
    def find(self, problem: Problem, completion: str) -> Found:
        """The answer in a completion."""

    @abstractmethod
    def judge_answers(self, answered: Answered) -> list[Verdict]:
        """One verdict per answer."""

    def verdicts(self, problems: Sequence[Problem], completions: Sequence[str], cut: Sequence[bool]) -> list[Verdict]:
        found = [self.find(*pair) for pair in zip(problems, completions, strict=True)]
        answered = [(p, one.answer) for p, one in zip(problems, found, strict=True) if one.answer is not None]
        judged = iter(self.judge_answers(answered))
        verdicts = []
        for one, is_cut in zip(found, cut, strict=True):
            if one.answer is None:
                verdicts.append(Verdict(None, False, "truncated" if is_cut else "no_answer"))
            else:
                verdict = next(judged)
                verdicts.append(replace(verdict, extracted_by=one.extracted_by))
        return verdicts


class Scored(NamedTuple):
    """What a worker says of one answer; "timeout" if it used up the worker's time or memory."""

    status: Status
    correct: bool
    message: str = ""

    @classmethod
    def of(cls, outcome: Outcome, correct: bool) -> "Scored":
        failed: Status = "timeout" if outcome.exhausted else "error"
        return cls("ok" if outcome.status == "ok" else failed, correct, outcome.message)


class SlowTask(AnswerTask):
    """Judges each distinct answer to a problem once; failures of the verifier are tried again by the next call.

    An answer that uses up the verifier's time or memory is wrong if the problem's gold, judged next, does not.
    """

    def __init__(self, name: str, problems: Sequence[Problem], *, thinking: bool = False) -> None:
        super().__init__(name, problems, thinking=thinking)
        self.known: dict[tuple[str, str], Scored] = {}

    @abstractmethod
    def score(self, pairs: list[tuple[str, str]]) -> dict[tuple[str, str], Scored]:
        """By (problem id, answer)."""

    @abstractmethod
    def answer_class(self, problem: Problem, answer: str, correct: bool) -> str: ...

    def judge_answers(self, answered: Answered) -> list[Verdict]:
        self.known = {pair: done for pair, done in self.known.items() if done.status != "error"}
        fresh = self.score(sorted({(problem.id, answer) for problem, answer in answered} - self.known.keys()))
        late = {pair for pair, done in fresh.items() if done.status == "timeout"}
        ids = {problem_id for problem_id, _ in late}
        fine = self._manages({problem.id: problem for problem, _ in answered if problem.id in ids})
        self.known |= fresh
        self.known |= {pair: fresh[pair]._replace(status="error") for pair in late if pair[0] not in fine}
        verdicts = []
        for problem, answer in answered:
            status, correct, message = self.known[problem.id, answer]
            verdicts.append(Verdict(self.answer_class(problem, answer, correct), correct, status, message=message))
        return verdicts

    def _manages(self, problems: Mapping[str, Problem]) -> set[str]:
        """The problems whose gold the verifier judges now; without a gold, an empty answer will do."""
        replies = {problem_id: gold_reply(self, problem) for problem_id, problem in problems.items()}
        golds = {
            problem_id: "" if reply is None else self.find(problems[problem_id], reply).answer or ""
            for problem_id, reply in replies.items()
        }
        done = self.score(sorted(golds.items())) if golds else {}
        return {problem_id for (problem_id, _), scored in done.items() if scored.status == "ok"}
