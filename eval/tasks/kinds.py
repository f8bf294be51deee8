"""From a benchmark's problems to a task with its verifier: one line per kind."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from offleash.eval.errors import ConfigError
from offleash.eval.problem import Problem, Task
from offleash.eval.tasks.code_tasks import CodeAnswers, Tests
from offleash.eval.tasks.loading import Benchmark, Row
from offleash.eval.tasks.math_tasks import NUMBER_STEPS
from offleash.eval.tasks.text_tasks import JudgedAnswers, TextAnswers
from offleash.eval.tasks.value_answers import ValueAnswers
from offleash.eval.verify.extract import MATH_STEPS
from offleash.eval.verify.judge import Judge


def build(
    benchmark: Benchmark,
    pairs: list[tuple[Problem, Row]],
    thinking: bool,
    workers: int,
    allow_unconfined: bool,
    judge: Mapping[str, str | Path],
) -> Task:
    name, problems = benchmark.name, [problem for problem, _ in pairs]
    if benchmark.kind == "code":
        tests = {problem.id: Tests(**tests_of(benchmark, row)) for problem, row in pairs}
        return CodeAnswers(name, problems, tests, thinking=thinking, workers=workers, allow_unconfined=allow_unconfined)
    if benchmark.kind == "exact":
        return TextAnswers(name, problems, thinking=thinking)
    if benchmark.kind == "judge":
        return JudgedAnswers(name, problems, judge_of(judge), thinking=thinking)
    steps = NUMBER_STEPS if benchmark.last_number else MATH_STEPS
    return ValueAnswers(name, problems, steps=steps, thinking=thinking, tolerance=benchmark.tolerance)


def tests_of(benchmark: Benchmark, row: Row) -> dict[str, Any]:
    assert benchmark.tests is not None, f"{benchmark.name} is code without tests"
    return benchmark.tests(row)


def judge_of(judge: Mapping[str, str | Path]) -> Judge | None:
    """None without a url: the problems can be sampled, and judged later."""
    if not judge["url"]:
        return None
    if not judge["model"]:
        raise ConfigError("a judge needs judge_model, the name its server knows it by")
    return Judge(str(judge["url"]), str(judge["model"]), Path(judge["cache"]))
