"""Measure a run from its folder: every checkpoint becomes a pool, support metrics and a point in TensorBoard.

DIR is the folder of a run of any trainer that writes Hugging Face checkpoints: ours, TRL's, folders like step_50 or
global_step_50/actor/huggingface, models or LoRA adapters. The command runs beside the training or after it, on the
same machine or on another one that sees the folder, and changes nothing in the run. Several share the checkpoints.

The base is sampled once and kept in base-pools beside OUT. A checkpoint is measured when it is complete, and pinned
first, so that the trainer may delete it. OUT gets what SupportCallback leaves in a run's folder: pools/step-*,
support.json and TensorBoard's event files. After kill -9 the same command goes on where it was. A checkpoint that was
written again with other weights is measured again.

With --dumps, DIR holds files of samples that another trainer writes, one per step, in a format that `offleash import`
reads. Each becomes a pool, measured against the first, or against the pool that is given as --base. The problems must
be the same at every step. `offleash watch --dumps --help` lists the flags.

It ends with Ctrl-C, or with --once when all is measured; the exit status is 1 if a checkpoint had to be left out.

examples:
    offleash watch runs/mine --task countdown --task-args '{"split": "probe", "n": 64}' --base lab --k 64
    offleash watch runs/mine --task math500 --base Qwen/Qwen2.5-7B --engine vllm --k 1024 --plan until
    offleash watch runs/mine ... --once --order oldest
    offleash watch runs/verl/validation --dumps --task gsm8k
"""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from offleash.eval.console import say
from offleash.eval.errors import ConfigError
from offleash.eval.flags import add_flags, command_parser

if TYPE_CHECKING:
    from offleash.callbacks.watch.journal import Journal
    from offleash.eval.problem import Task


def main(argv: list[str]) -> int:
    return _follow_dumps(argv) if "--dumps" in argv else _follow_checkpoints(argv)


def _follow_checkpoints(argv: list[str]) -> int:
    options = _parser().parse_args(argv)
    from offleash.callbacks.watch.settings import WatchSettings
    from offleash.eval.commands.sample import settings_of
    from offleash.eval.flags import from_flags

    how, settings = from_flags(WatchSettings, options), settings_of(options)
    if options.score_k < 0:
        raise ConfigError(f"--score-k must be 0 or more, got {options.score_k}")
    out, task = options.out or options.dir, _load_task(options)
    from transformers.utils.logging import disable_progress_bar

    from offleash.callbacks.watch.journal import Journal  # imports torch, which a mistake need not wait for
    from offleash.callbacks.watch.measure import Probe
    from offleash.callbacks.watch.watcher import Watcher

    disable_progress_bar()  # one for each model that is loaded
    base_pools = options.base_pools or out.resolve().parent / "base-pools"
    probe = Probe(task, options.base, settings, score_k=options.score_k, base_pools=base_pools)
    journal = Journal(out, settings.k, probe.temperature)
    watcher = Watcher(options.dir, probe, journal, how)
    try:
        watcher.run()
    finally:
        getattr(task, "close", lambda: None)()  # tasks with worker processes have one
    return _summarize(journal, watcher.left_out)


def _follow_dumps(argv: list[str]) -> int:
    options = _dumps_parser().parse_args(argv)
    from offleash.callbacks.watch.settings import WatchSettings
    from offleash.eval.flags import from_flags

    how, task = from_flags(WatchSettings, options), _load_task(options) if options.task or options.data else None
    from offleash.callbacks.watch.dumps import DumpWatcher
    from offleash.eval.storage import path_at

    base = None if options.base == "first" else path_at(options.base)
    watcher = DumpWatcher(options.dir, options.out or options.dir, how, task, base)
    try:
        journal = watcher.run()
    finally:
        getattr(task, "close", lambda: None)()
    return _summarize(journal, watcher.left_out)


def _load_task(options: argparse.Namespace) -> "Task":
    from offleash.eval.commands.data_flags import EITHER, one_task
    from offleash.eval.tasks import load_task

    name, arguments = one_task(options)
    if name is None:
        raise ConfigError(EITHER)
    return load_task(name, **arguments)


def _summarize(journal: "Journal", left_out: Mapping[int, str]) -> int:
    from offleash.callbacks.summary import run_summary

    if journal.steps():
        say(run_summary(journal.record(), journal.out))
    for step, reason in sorted(left_out.items()):
        say(f"offleash: step {step} was left out: {reason}", error=True)
    return 1 if left_out else 0


def _parser() -> argparse.ArgumentParser:
    from offleash.eval.commands.sample_options import add_budget, add_how

    made, what = _common()
    what.add_argument("--task", help="the probe problems: a name (offleash tasks) or my_module:MyTask; or give --data")
    what.add_argument("--base", required=True, metavar="MODEL", help="the model that the run started from")
    what.add_argument("--base-pools", type=Path, metavar="DIR", help="folder of base pools (default: beside OUT)")
    what.add_argument(
        "--score-k", type=int, default=16, metavar="K", help="samples scored for token entropy and KL (default 16)"
    )
    add_budget(what)
    add_how(made)
    return made


def _dumps_parser() -> argparse.ArgumentParser:
    made, what = _common()
    what.add_argument("--task", help="verify the completions with this task instead of taking verdicts as given")
    what.add_argument("--base", default="first", metavar="POOL", help="pool to compare with (default: the first dump)")
    return made


def _common() -> tuple[argparse.ArgumentParser, "argparse._ArgumentGroup"]:
    from offleash.callbacks.watch.settings import WatchSettings
    from offleash.eval.commands.data_flags import add_own_benchmark

    made = command_parser("watch", __doc__)
    made.add_argument("dir", type=Path, metavar="DIR", help="folder of the run; it may not exist yet")
    what = made.add_argument_group("what to measure")
    what.add_argument("--dumps", action="store_true", help="follow files of samples instead of checkpoints")
    what.add_argument("--task-args", default="{}", metavar="JSON", help="arguments of the task")
    what.add_argument("--out", type=Path, help="folder of the results (default: DIR)")
    add_own_benchmark(made.add_argument_group("a benchmark of your own (short for the task `data` and its arguments)"))
    when = made.add_argument_group("which steps")
    add_flags(when, WatchSettings, "every", "order", "behind", "poll")
    when.add_argument("--once", action="store_true", help="measure the steps that exist, then exit")
    return made, what
