"""Completions judged by a function of one's own: `def correct(completion, gold, row)`, named `my_module:correct`.

It gets the completion's text, the gold answer and the row of the dataset, and returns whether the completion is correct
(True or False, 1 or 0), or a whole Verdict. Scores between 0 and 1 are refused: say yourself from where on an answer is
correct. An exception is a failure of the verifier, never a wrong answer: return False for what cannot be read.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from offleash.eval.code_fingerprint import verifier_fingerprint
from offleash.eval.errors import ConfigError, first_line
from offleash.eval.problem import Problem, Verdict
from offleash.eval.tasks.answer_task import TextTask
from offleash.eval.tasks.text_tasks import ANSWER_STEPS, class_of
from offleash.eval.verify.extract import extract
from offleash.eval.verify.verdicts import verdicts_of

PARAMETERS = ("completion", "gold", "row")
FORMS = ("{}", "\\boxed{{{}}}", "<answer>{}</answer>", "#### {}")
"""How a gold may be written in a completion: a function that accepts one of them can be checked."""
VERDICTS = "1"  # bump with every change that could change a verdict


class FunctionAnswers(TextTask):
    """Problems with their rows by problem id.

    Of a completion that is correct the answer is the gold's, of one that is not it is found by the usual cascade (a
    box, an answer tag, `Answer:`, a short reply). Return a Verdict to say otherwise.
    """

    def __init__(
        self,
        name: str,
        problems: Sequence[Problem],
        rows: Mapping[str, Mapping[str, Any]],
        function: Callable[..., Any],
        *,
        thinking: bool = False,
    ) -> None:
        super().__init__(name, problems, thinking=thinking)
        self.rows, self.function = dict(rows), function
        self.called = f"{function.__module__}:{function.__qualname__}"
        known = verifier_fingerprint(function)[:16]
        self.version = f"function-{VERDICTS}-{'think' if thinking else 'plain'}-{known}"

    def verdicts(self, problems: Sequence[Problem], completions: Sequence[str], cut: Sequence[bool]) -> list[Verdict]:
        return [self.verdict(*one) for one in zip(problems, completions, cut, strict=True)]

    def verdict(self, problem: Problem, completion: str, truncated: bool = False) -> Verdict:
        if problem.id not in self.rows:
            raise ConfigError(f"problem {problem.id!r} is not in task {self.name!r}")
        said = self.function(completion, problem.gold, dict(self.rows[problem.id]))
        if isinstance(said, Verdict):
            return said
        correct, found = self.as_bool(said), extract(completion, ANSWER_STEPS, opened=self.thinking)
        if found.answer is None and not correct:
            return Verdict(None, False, "truncated" if truncated else "no_answer")
        return Verdict(class_of(problem.gold, found.answer or "", correct), correct, "ok", found.extracted_by)

    def as_bool(self, said: Any) -> bool:
        """A TypeError for what is neither a yes nor a no."""
        if said is None or isinstance(said, str) or said not in (0, 1):
            raise TypeError(f"{self.called} must return True, False or a Verdict, got {said!r:.60}")
        return bool(said)

    def quick_faults(self) -> list[tuple[str, str]]:
        """None; a ConfigError if the function does not judge the first gold and an empty completion."""
        for completion in (self.problems[0].gold, ""):
            self.check_call(self.problems[0], completion)
        return []

    def check_call(self, problem: Problem, completion: str) -> None:
        try:
            self.verdict(problem, completion)
        except Exception as error:  # the function is the user's: it can raise anything
            raise ConfigError(
                f"the verifier {self.called} fails on problem {problem.id!r} and the completion {completion!r:.60}: "
                f"{type(error).__name__}: {first_line(error)}. It must return True, False or a Verdict for any text"
            ) from error

    def gold_faults(self) -> list[tuple[str, str]]:
        forms = ", ".join(form.format("GOLD") for form in FORMS[1:])
        return [
            (problem.id, f"gold {problem.gold!r:.60} is judged wrong, alone and as {forms}")
            for problem in self.problems
            if self.gold_completion(problem) is None
        ]

    def gold_completion(self, problem: Problem) -> str | None:
        """The gold as the function accepts it; None if it does not."""
        for form in FORMS:
            written = form.format(problem.gold)
            if any(verdict.correct for verdict in verdicts_of(self.verify, [problem], [written])):
                return written
        return None
