"""Problems whose answer is a number or a formula (GSM8K, MATH, AIME): given as rows, answered in a box, judged by
value.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from typing import Any

from offleash.eval.errors import ConfigError
from offleash.eval.problem import Problem, Verdict
from offleash.eval.verify.extract import MATH_STEPS, Found, Step, extract, final_phrase, last_number
from offleash.eval.verify.math_answers.answers import answer_class
from offleash.eval.verify.math_answers.mathematics import Judgement, MathVerifier

INSTRUCTION = "Reason step by step, and put your final answer within \\boxed{}."
NUMBER_STEPS: tuple[Step, ...] = (*MATH_STEPS, ("phrase", final_phrase), ("last_number", last_number))
VERDICTS = "1"  # changes with any change that could change a verdict


class MathAnswers:
    """A task made of rows {id, problem, answer}; further fields go to `meta`.

    `steps` is the extraction cascade: boxes and answer tags by default, `NUMBER_STEPS` for tasks such as GSM8K whose
    models answer in prose. `thinking` says that the chat template opens a think block itself.
    """

    def __init__(
        self,
        name: str,
        rows: Iterable[Mapping[str, Any]],
        *,
        instruction: str = INSTRUCTION,
        chat: bool = True,
        steps: Sequence[Step] = MATH_STEPS,
        thinking: bool = False,
        verifier: MathVerifier | None = None,
    ) -> None:
        self.name = name
        self.problems: Sequence[Problem] = [problem_of(row, instruction, chat) for row in rows]
        ids = [problem.id for problem in self.problems]
        if len(set(ids)) != len(ids):
            raise ConfigError(
                f"task {name!r} has repeated problem ids, such as {next(i for i in ids if ids.count(i) > 1)!r}"
            )
        self.steps, self.thinking = tuple(steps), thinking
        self.verifier = verifier or MathVerifier()
        cascade = ",".join(step for step, _ in self.steps)
        library = version("math-verify")
        self.version = f"math-{VERDICTS}-{library}-{hashlib.sha256(f'{cascade}|{thinking}'.encode()).hexdigest()[:8]}"

    def verify(
        self, problems: Sequence[Problem], completions: Sequence[str], truncated: Sequence[bool] | None = None
    ) -> list[Verdict]:
        cut = [False] * len(completions) if truncated is None else truncated
        found = [extract(completion, self.steps, opened=self.thinking) for completion in completions]
        answered = [index for index, one in enumerate(found) if one.answer is not None]
        judged = self.verifier.judge(
            [problems[index].gold for index in answered], [found[index].answer or "" for index in answered]
        )
        judgements: dict[int, Judgement] = dict(zip(answered, judged, strict=True))
        return [verdict_of(one, judgements.get(index), bool(cut[index])) for index, one in enumerate(found)]

    def correct_answers(self, problem: Problem) -> tuple[str, ...]:
        return (answer_class(problem.gold),)

    def gold_faults(self) -> list[tuple[str, str]]:
        bad = self.verifier.unreadable(problem.gold for problem in self.problems)
        return [(p.id, f"gold {p.gold[:60]!r} {bad[p.gold]}") for p in self.problems if p.gold in bad]

    def gold_completion(self, problem: Problem) -> str:
        return f"\\boxed{{{problem.gold}}}"


def verdict_of(found: Found, judgement: Judgement | None, truncated: bool) -> Verdict:
    if judgement is None:
        return Verdict(None, False, "truncated" if truncated else "no_answer")
    return Verdict(judgement.answer, judgement.correct, judgement.status, found.step)


def problem_of(row: Mapping[str, Any], instruction: str, chat: bool) -> Problem:
    missing = [field for field in ("id", "problem", "answer") if row.get(field) is None]
    if missing:
        raise ConfigError(f"a row lacks {', '.join(missing)}: {dict(row)!r:.200}")
    text = f"{row['problem']}\n\n{instruction}" if instruction else str(row["problem"])
    meta = {key: value for key, value in row.items() if key not in ("id", "problem", "answer")}
    prompt: str | list[dict[str, Any]] = [{"role": "user", "content": text}] if chat else text
    return Problem(str(row["id"]), prompt, str(row["answer"]), meta)
