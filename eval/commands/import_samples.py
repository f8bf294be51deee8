"""Make a pool of samples that another tool drew.

FILE is JSONL or parquet with problem_id, completion and/or answer, correct; also index (otherwise counted per problem),
truncated, tokens, logprob, entropy, prompt, gold. Samples of lm-eval, lighteval and verifiers are recognized by their
columns, and so is the output of `offleash export`; a dataset folder that it wrote also supplies the sampling settings
and the task, where no flag overrides them. Every line is checked; if one is invalid, nothing is written.

examples:
    offleash import samples.jsonl --pool DIR                       verdicts as given
    offleash import samples.jsonl --pool DIR --task gsm8k          verified again by a task
    offleash import samples_gsm8k_2025.jsonl --pool DIR --filter flexible-extract
"""

import argparse
from pathlib import Path

from offleash.eval.console import say
from offleash.eval.convert.formats import Reading
from offleash.eval.convert.importer import SAMPLING, Imported, import_samples
from offleash.eval.errors import ConfigError
from offleash.eval.flags import command_parser, json_option
from offleash.eval.problem import Task
from offleash.eval.tasks import load_task


def main(argv: list[str]) -> int:
    options = _parser().parse_args(argv)
    task = _load_task(options)
    sampling = {name: getattr(options, name) for name in SAMPLING if getattr(options, name) is not None}
    made = import_samples(
        Path(options.file),
        Path(options.pool),
        task=task,
        reading=Reading(options.filter, options.metric, options.threshold),
        model=options.model,
        sampling=sampling,
    )
    say(_summary(made, options.pool, task))
    if made.ignored:
        say(f"columns not used: {', '.join(made.ignored)}")
    return 0


def _parser() -> argparse.ArgumentParser:
    made = command_parser("import", __doc__)
    made.add_argument("file", metavar="FILE", help="JSONL, parquet, or a dataset folder")
    made.add_argument("--pool", required=True, metavar="DIR", help="folder to create")
    made.add_argument("--task", help="verify the completions with this task instead of taking verdicts as given")
    made.add_argument("--path", help="read the task's problems from a local file instead of the hub")
    made.add_argument("--split", help="split of the task")
    made.add_argument(
        "--task-args", metavar="JSON", help='other arguments of the task, {"judge_url": "http://...", ...}'
    )
    made.add_argument("--filter", default="", help="lm-eval: the filter whose answers and scores to use")
    made.add_argument("--metric", default="", help="lm-eval, lighteval: the metric that is the verdict")
    made.add_argument("--threshold", type=float, help="lowest correct score, if scores are not 0 or 1")
    made.add_argument("--model", default="unknown", help="name of the model, for the record")
    for name in SAMPLING:
        made.add_argument(f"--{name.replace('_', '-')}", type=float, help="sampling setting, for the record")
    return made


def _load_task(options: argparse.Namespace) -> Task | None:
    given = {name: getattr(options, name) for name in ("path", "split") if getattr(options, name)}
    if options.task is None:
        if given or options.task_args:
            raise ConfigError("--path, --split and --task-args need --task")
        return None
    return load_task(options.task, **{**json_option(options.task_args or "{}", "--task-args"), **given})


def _summary(made: Imported, pool: str, task: Task | None) -> str:
    each = f"{made.most} each" if made.fewest == made.most else f"{made.fewest} to {made.most} each"
    verdicts = "verdicts as given" if task is None else f"verified by {task.name} ({task.version})"
    return (
        f"{made.format} samples: {made.problems} problems, {made.samples} samples ({each}), "
        f"{made.correct / made.samples:.1%} correct, {verdicts} -> {pool}"
    )
