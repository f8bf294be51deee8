"""Make a pool of samples that another tool drew.

The format is recognized by content: generations of verl, traces of prime-rl and verifiers, evaluation dumps of SkyRL,
completions of TRL, logs of inspect, samples of lm-eval and lighteval, and JSONL or parquet with problem_id, completion
and/or answer, correct; also index (otherwise counted per problem), step, truncated, tokens, logprob, entropy, prompt,
gold. The output of `offleash export` is read as well; a dataset folder that it wrote also supplies the sampling
settings and the task, where no flag overrides them. Several files of one training step add up. Every line is checked;
if one is invalid, nothing is written.

examples:
    offleash import samples.jsonl --pool DIR                              verdicts as given
    offleash import samples.jsonl --pool DIR --task gsm8k                 verified again by a task
    offleash import val/100.jsonl --pool DIR --correct score --threshold 1
    offleash import val/*.jsonl --pool DIR --steps all                    DIR/step-000100, ...: one pool per step
    offleash import logs/2026-11-01_gsm8k.eval --pool DIR
"""

import argparse
from pathlib import Path

from offleash.eval.console import say
from offleash.eval.convert.formats import AUTO, OPTIONS
from offleash.eval.convert.importer import SAMPLING, Imported, import_samples, import_series
from offleash.eval.convert.readers.record import Reading
from offleash.eval.errors import ConfigError
from offleash.eval.flags import command_parser, json_option
from offleash.eval.problem import Task
from offleash.eval.storage import is_stored, path_at
from offleash.eval.tasks import load_task


def main(argv: list[str]) -> int:
    options = _parser().parse_args(argv)
    if options.steps and options.step is not None:
        raise ConfigError("--step takes one step and --steps all of them: give one of the two")
    task = _load_task(options)
    paths = [Path(name) for name in options.file]
    target = path_at(options.pool)
    if is_stored(target):
        raise ConfigError(f"offleash import writes into a folder of this machine, not {target}: copy the pool then")
    known = {
        "task": task,
        "reading": Reading(options.filter, options.correct, options.threshold, answer=options.answer),
        "model": options.model,
        "sampling": {name: getattr(options, name) for name in SAMPLING if getattr(options, name) is not None},
        "option": options.format,
    }
    if options.steps:
        series = import_series(paths, target, **known)
    else:
        series = [import_samples(paths, target, step=options.step, **known)]
    how = "detected" if options.format == AUTO else "read as"
    say(f"{how} {series[0].format} samples in {_files(paths)}; {_verdicts(series[0], task)}")
    for made in series:
        say(_summary(made))
    if series[0].ignored:
        say(f"columns not used: {', '.join(series[0].ignored)}")
    return 0


def _parser() -> argparse.ArgumentParser:
    made = command_parser("import", __doc__)
    made.add_argument("file", nargs="+", metavar="FILE", help="JSONL, parquet, an inspect log, or a dataset folder")
    made.add_argument("--pool", required=True, metavar="DIR", help="folder to create")
    made.add_argument("--format", choices=OPTIONS, default=AUTO, help="what wrote the files (default: by content)")
    made.add_argument("--task", help="verify the completions with this task instead of taking verdicts as given")
    made.add_argument("--path", help="read the task's problems from a local file instead of the hub")
    made.add_argument("--split", help="split of the task")
    made.add_argument(
        "--task-args", metavar="JSON", help='other arguments of the task, {"judge_url": "http://...", ...}'
    )
    made.add_argument("--filter", default="", help="lm-eval: the filter whose answers to use; verifiers: the agent")
    made.add_argument(
        "--correct", "--metric", default="", metavar="NAME", help="the score, reward or metric that is the verdict"
    )
    made.add_argument("--threshold", type=float, help="lowest correct score, if scores are not 0 or 1")
    made.add_argument(
        "--answer", default="", metavar="COLUMN", help="verl, trl, verifiers: where the answers are, otherwise unknown"
    )
    made.add_argument("--step", type=int, metavar="N", help="the training step to take, if the files hold several")
    made.add_argument("--steps", choices=("all",), help="make a pool of each training step in the folder --pool")
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


def _files(paths: list[Path]) -> str:
    return str(paths[0]) if len(paths) == 1 else f"{len(paths)} files"


def _verdicts(made: Imported, task: Task | None) -> str:
    if task is not None:
        return f"verified by {task.name} ({task.version})"
    return f"verdicts as given by {made.judged_by}" if made.judged_by else "verdicts as given"


def _summary(made: Imported) -> str:
    each = f"{made.most} each" if made.fewest == made.most else f"{made.fewest} to {made.most} each"
    step = "" if made.step is None else f"step {made.step}: "
    return (
        f"{step}{made.problems} problems, {made.samples} samples ({each}), {made.correct / made.samples:.1%} correct "
        f"-> {made.pool}"
    )
