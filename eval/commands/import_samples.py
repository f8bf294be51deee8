"""Make a pool of samples that another tool drew.

    offleash import samples.jsonl --pool DIR                       verdicts as given
    offleash import samples.jsonl --pool DIR --task gsm8k          judged again by a task's own verifier
    offleash import samples_gsm8k_2025.jsonl --pool DIR --filter flexible-extract

FILE is JSONL or parquet with problem_id, completion and/or answer, correct; also index (else counted per problem),
truncated, tokens, logprob, entropy, prompt, gold. Samples of lm-eval, lighteval and verifiers are recognised by their
columns, and so is what `offleash export` wrote; its dataset folder also brings the sampling and the task it was judged
by, where no flag says otherwise. Every line is checked; if one is bad, nothing is written.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from offleash.eval.convert.formats import Reading
from offleash.eval.convert.importer import Imported, Source, import_samples
from offleash.eval.errors import ConfigError
from offleash.eval.problem import Task
from offleash.eval.tasks import load_task

SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_new_tokens")


def main(words: list[str]) -> int:
    options = parser().parse_args(words)
    task = task_of(options)
    sampling = {name: getattr(options, name) for name in SAMPLING if getattr(options, name) is not None}
    made = import_samples(
        Path(options.file),
        Path(options.pool),
        task=task,
        reading=Reading(options.filter, options.metric, options.threshold),
        source=Source(options.model, sampling),
    )
    print(summary(made, options.pool, task))
    if made.ignored:
        print(f"columns not used: {', '.join(made.ignored)}")
    return 0


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="offleash import", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("file", metavar="FILE", help="JSONL, parquet, or a dataset folder")
    made.add_argument("--pool", required=True, metavar="DIR", help="the folder to make")
    made.add_argument("--task", help="judge the completions with this task instead of taking verdicts as given")
    made.add_argument("--path", help="the task's problems from a local file instead of the hub")
    made.add_argument("--split", help="the task's split")
    made.add_argument("--task-args", metavar="JSON", help='more of the task, {"judge_url": "http://...", ...}')
    made.add_argument("--filter", default="", help="lm-eval: which filter's answers and scores")
    made.add_argument("--metric", default="", help="lm-eval, lighteval: which metric is the verdict")
    made.add_argument("--threshold", type=float, help="from which score on it is correct, if scores are not 0 or 1")
    made.add_argument("--model", default="unknown", help="the model's name, to remember")
    for name in SAMPLING:
        made.add_argument(f"--{name.replace('_', '-')}", type=float, help="as it was sampled, to remember")
    return made


def task_of(options: argparse.Namespace) -> Task | None:
    given: dict[str, Any] = {name: getattr(options, name) for name in ("path", "split") if getattr(options, name)}
    if options.task is None:
        if given or options.task_args:
            raise ConfigError("--path, --split and --task-args belong to a task: name it with --task")
        return None
    try:
        more = json.loads(options.task_args or "{}")
    except ValueError as error:
        raise ConfigError(f"--task-args is no JSON: {error}") from error
    if not isinstance(more, dict):
        raise ConfigError(f"--task-args must be a JSON object, got {options.task_args!r:.60}")
    return load_task(options.task, **{**more, **given})


def summary(made: Imported, pool: str, task: Task | None) -> str:
    each = f"{made.most} each" if made.fewest == made.most else f"{made.fewest} to {made.most} each"
    judge = "verdicts as given" if task is None else f"judged by {task.name} ({task.version})"
    return (
        f"{made.format} samples: {made.problems} problems, {made.samples} samples ({each}), "
        f"{made.correct / made.samples:.1%} correct, {judge} -> {pool}"
    )
