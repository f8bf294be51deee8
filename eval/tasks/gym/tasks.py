"""Any task of reasoning-gym by name: its own generator and its own scorer (in a killable worker); correct means 0.99.

Partial credit is not correctness: most scorers give some to junk. Tasks with a broken scorer are not supported. Where
few answers are possible, pass@k rises by guessing alone; `note` says so.
"""

import base64
import hashlib
import json
import pickle
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from offleash.eval.errors import ConfigError
from offleash.eval.problem import Problem
from offleash.eval.tasks.answer_task import Scored, SlowTask
from offleash.eval.tasks.gym.answers import GUARDS, refused, spelled
from offleash.eval.verify.extract import TAGGED_STEPS, Found, extract
from offleash.eval.verify.sandbox.workers import WorkerPool

CORRECT = 0.99
# Their scores are shares of cells, letters or seconds, so that 0.99 is still wrong: game_of_life gives 0.99 for one
# wrong cell of a hundred, time_intervals for a quarter of an hour. Only full marks count.
PROPORTIONAL = {"game_of_life", "emoji_mystery", "modulo_grid", "time_intervals", "spell_backward"}
VERDICTS = "2"  # bump with every change that could change a verdict
INSTRUCTION = (
    "Think step by step, then give your final answer, and nothing else, between <answer> and </answer>. Where an "
    "example shows a format, keep to it."
)
UNSUPPORTED = {
    "game_of_life_halting": "its scorer gives full marks to any non-empty answer",
    "puzzle24": "its scorer ignores which numbers were given: 6*4*1*1 always wins",
    "composite": "it mixes other tasks; name them one by one",
}
GUESSABLE = {
    **dict.fromkeys(("syllogism", "circuit_logic", "course_schedule", "isomorphic_strings", "ransom_note"), 2),
    **dict.fromkeys(("acre", "mahjong_puzzle"), 3),
    "color_cube_rotation": 6,
    "self_reference": 7,
}
STATED_ELSEWHERE = ("possible_answer", "example_answer", "example_correct_answer")  # golds of tasks with many answers


class Gym(SlowTask):
    """`size` problems of the reasoning-gym task `dataset`, generated from `seed`; `config` is the generator's own."""

    def __init__(
        self,
        dataset: str,
        *,
        size: int = 100,
        seed: int = 0,
        config: Mapping[str, Any] | None = None,
        instruction: str = INSTRUCTION,
        thinking: bool = False,
        workers: int | None = None,
        job_seconds: float = 10.0,
    ) -> None:
        if dataset in UNSUPPORTED:
            raise ConfigError(f"reasoning-gym task {dataset!r} is not supported: {UNSUPPORTED[dataset]}")
        self.dataset, self.config = dataset, json.dumps(dict(config or {}), sort_keys=True)
        entries = generate(dataset, size, seed, self.config)
        problems = [problem_of(dataset, seed, index, entry, instruction) for index, entry in enumerate(entries)]
        super().__init__(f"gym/{dataset}", problems, thinking=thinking)
        self.version = f"gym-{VERDICTS}-{version('reasoning-gym')}-{'think' if thinking else 'plain'}"
        guesses = GUESSABLE.get(dataset)
        self.note = f"only about {guesses} answers are possible: pass@k rises by guessing" if guesses else ""
        self._entries = {
            problem.id: base64.b64encode(pickle.dumps(entry)).decode()
            for problem, entry in zip(problems, entries, strict=True)
        }
        self.pool = WorkerPool("offleash.eval.tasks.gym.scoring:score", workers=workers, job_seconds=job_seconds)
        self._threshold = 1.0 if dataset in PROPORTIONAL else CORRECT
        self._guard = GUARDS.get(dataset, lambda answer, gold: True)
        self._golds = {problem.id: problem.gold for problem in problems}

    def find(self, problem: Problem, completion: str) -> Found:
        found = extract(completion, TAGGED_STEPS, opened=self.thinking)
        return found if found.answer is None else Found(spelled(self.dataset, found.answer), found.extracted_by)

    def gold_completion(self, problem: Problem) -> str | None:
        return f"<answer>{problem.gold}</answer>" if problem.gold else None

    def close(self) -> None:
        self.pool.close()

    def score(self, pairs: list[tuple[str, str]]) -> dict[tuple[str, str], Scored]:
        for problem_id, _ in pairs:
            if problem_id not in self._entries:
                raise ConfigError(f"problem {problem_id!r} is not in task {self.name!r} with this seed and size")
        done = dict.fromkeys(pairs, Scored("ok", False))
        scored = [pair for pair in pairs if refused(self.dataset, pair[1]) is None]
        jobs = [
            {"dataset": self.dataset, "config": self.config, "entry": self._entries[problem_id], "answer": answer}
            for problem_id, answer in scored
        ]
        for pair, outcome in zip(scored, self.pool.map(jobs), strict=True):
            full = outcome.status == "ok" and outcome.value >= self._threshold
            done[pair] = Scored.of(outcome, full and self._guard(pair[1], self._golds[pair[0]]))
        return done

    def answer_class(self, problem: Problem, answer: str, correct: bool) -> str:
        if correct:
            return problem.gold or "correct"
        shown = " ".join(answer.split())
        if len(shown) > 200:
            return "#" + hashlib.sha256(shown.encode(errors="replace")).hexdigest()[:16]
        return shown if shown != problem.gold else f"{shown} (malformed)"


def generate(dataset: str, size: int, seed: int, config: str) -> list[dict[str, Any]]:
    try:
        import reasoning_gym  # optional, and slow to import
    except ModuleNotFoundError as error:
        raise ConfigError("this task needs reasoning-gym: pip install 'offleash[gym]'") from error
    try:
        made = reasoning_gym.create_dataset(dataset, size=size, seed=seed, **json.loads(config))
    except (ValueError, TypeError, AssertionError) as error:
        raise ConfigError(f"reasoning-gym task {dataset!r}: {error}") from error
    return [made[index] for index in range(size)]


def problem_of(dataset: str, seed: int, index: int, entry: dict[str, Any], instruction: str) -> Problem:
    text = f"{entry['question']}\n\n{instruction}" if instruction else entry["question"]
    return Problem(
        f"{dataset}/{seed}/{index}",
        [{"role": "user", "content": text}],
        gold_of(entry),
        {"dataset": dataset, "seed": seed, "index": index},
    )


def gold_of(entry: dict[str, Any]) -> str:
    """The reference answer, or an example where there are many; "" if the task gives none."""
    if entry["answer"] is not None:
        return str(entry["answer"])
    stated = [entry["metadata"][key] for key in STATED_ELSEWHERE if key in entry["metadata"]]
    if not stated:
        return ""
    return stated[0] if isinstance(stated[0], str) else json.dumps(stated[0])
