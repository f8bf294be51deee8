"""What a lab is made of: its task, and how often each completion is shown to its base."""

import random
from bisect import bisect
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import NamedTuple, Protocol

from offleash.eval.problem import Problem


class LabTask(Protocol):
    """A task of which every correct completion can be listed."""

    name: str
    problems: list[Problem]

    def correct_answers(self, problem: Problem) -> tuple[str, ...]: ...

    def spellings(self, problem: Problem, answer: str) -> tuple[str, ...]: ...


class Lab(NamedTuple):
    """A base: what it is taught, what it is measured on, and its size.

    `lessons` gives tasks of the train split, each with its share of the examples; `habit` weighs a completion. With
    `rare_problems`, a problem whose completions weigh less than 1 in all is drawn that much less often: so what is rare
    stays rare where nothing else is correct. Without, problems are drawn alike.
    """

    name: str
    folder: str
    lessons: Callable[[], list[tuple[float, LabTask]]]
    held_out: Callable[[str, int], LabTask]
    habit: Callable[[Problem, str], float]
    hidden: int
    layers: int
    steps: int
    batch: int = 64
    peak_lr: float = 3e-3
    rare_problems: bool = True


class Shown(NamedTuple):
    """A problem with the completions that are shown, and their cumulative weights."""

    prompt: str
    completions: tuple[str, ...]
    cumulative: tuple[float, ...]


def shown(task: LabTask, habit: Callable[[Problem, str], float]) -> list[Shown]:
    """The problems of a task that are shown at all."""
    found = []
    for problem in task.problems:
        texts = [text for answer in task.correct_answers(problem) for text in task.spellings(problem, answer)]
        weighed = [(text, weight) for text in texts if (weight := habit(problem, text)) > 0]
        if weighed:
            completions, weights = zip(*weighed, strict=True)
            found.append(Shown(str(problem.prompt), completions, tuple(accumulate(weights))))
    return found


class Teacher:
    """Draws examples: a lesson by its share, a problem, a completion by its weight."""

    def __init__(self, lab: Lab, seed: int) -> None:
        lessons = [(share, shown(task, lab.habit)) for share, task in lab.lessons()]
        self.shares = [share for share, _ in lessons]
        self.lessons: Sequence[list[Shown]] = [problems for _, problems in lessons]
        self.rare_problems = lab.rare_problems
        self.chooser = random.Random(seed)

    def example(self) -> tuple[str, str]:
        """A prompt and a completion."""
        [lesson] = self.chooser.choices(self.lessons, self.shares)
        problem = self.chooser.choice(lesson)
        while self.rare_problems and problem.cumulative[-1] < self.chooser.random():
            problem = self.chooser.choice(lesson)
        at = bisect(problem.cumulative, self.chooser.random() * problem.cumulative[-1])
        return problem.prompt, problem.completions[min(at, len(problem.completions) - 1)]
