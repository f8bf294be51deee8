"""Compare exploration variants with plain and with controls, over several seeds.

    offleash variants --config recipes/lab.yaml --explorers low_lr placebo pass_at_k focal --seeds 5 --out runs/variants

A name is an overlay in recipes/variants/ (or the path of a YAML file) with the few settings that define the variant.
`plain`, the recipe itself, is always run. low_lr, high_lr, high_beta, two_updates and placebo are controls. Arguments
after `--` are passed to every run:

    offleash variants --config lab --explorers focal --out runs/quick -- --max_steps 100

The same command resumes an interrupted sweep; finished runs are not repeated. OUT contains NAME/seed-S/ (the runs),
report.md, report.html, report.json (keys: offleash.train.variants.report), pareto.svg and tradeoffs.svg (and .png), and
tensorboard/ for the HParams page. The exit status is 1 if a run failed or is missing.

A variant is called better if, over the seeds, its NSCR is above that of plain, placebo and low_lr (with more updates
per rollout than plain also above two_updates, with a higher learning rate above high_lr), and its pass@1 is not worse
than plain's by more than the margin: p < .05 for all of this together, with Holm's correction over every variant that
was started in OUT or is requested. It expands support if its NSCR is at least 0 at such a pass@1. The report defines
the other terms, shows what stopping plain early would have given, and counts the rollouts and base samples.

low_lr has 0.3 times the recipe's learning rate, high_lr 4 times, high_beta 50 times its beta, which suits the lab. For
another recipe write your own low_lr.yaml (`scale: {learning_rate: 0.5}`) and pass its path.
"""

import argparse
import math
import shlex
import shutil
from pathlib import Path

from offleash.eval.console import say
from offleash.eval.errors import ConfigError


def main(argv: list[str]) -> int:
    at = argv.index("--") if "--" in argv else len(argv)
    options = _parser().parse_args(argv[:at])
    _check_options(options)
    from offleash.train.recipe.config import find_recipe  # imports TRL, which --help need not wait for
    from offleash.train.variants.overlays import ANY_PROCESSES, find_overlays
    from offleash.train.variants.report import write_reports
    from offleash.train.variants.runs import plan
    from offleash.train.variants.sweep import ONE_PROCESS, run_sweep

    overlays = find_overlays(options.explorers)
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    processes = ANY_PROCESSES if options.launch or options.report_only else 1
    runs = plan(find_recipe(options.config), overlays, seeds, options.out, argv[at + 1 :], processes)
    launch = tuple(shlex.split(options.launch)) if options.launch else ONE_PROCESS
    failed = [] if options.report_only else run_sweep(runs, options.out, launch, options.jobs)
    lacking = [run for run in runs if not run.has_ended]
    if len(lacking) < len(runs):
        out = options.out
        say(write_reports(runs, out, options.margin, max(80, shutil.get_terminal_size((118, 40)).columns)).rstrip("\n"))
        say(f"\nFiles: {out}/report.html, report.md, report.json, pareto.svg, tradeoffs.svg.")
        say(f"TensorBoard: tensorboard --logdir {out}")
    if lacking:
        names = ", ".join(run.name for run in lacking)
        say(f"offleash: {len(lacking)} of {len(runs)} runs have no result: {names}", error=True)
    return 1 if lacking or failed else 0


def _check_options(options: argparse.Namespace) -> None:
    for name in ("seeds", "jobs"):
        if getattr(options, name) < 1:
            raise ConfigError(f"--{name} must be at least 1, got {getattr(options, name)}")
    if not (math.isfinite(options.margin) and options.margin >= 0):
        raise ConfigError(f"--margin must be 0 or more, got {options.margin}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="offleash variants",
        usage="offleash variants --config RECIPE --explorers NAME [NAME ...] --out OUT [...] [-- TRAINING FLAGS]",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--config", required=True, metavar="RECIPE", help="the base recipe that the overlays modify")
    add("--explorers", nargs="+", required=True, metavar="NAME", help="overlays (names or files), including controls")
    add("--out", type=Path, required=True, help="folder of the sweep")
    add("--seeds", type=int, default=3, metavar="N", help="seeds per variant (default: %(default)s)")
    add("--first-seed", type=int, default=0, metavar="S", help="use seeds S, S+1, ... (default: %(default)s)")
    add("--jobs", type=int, default=1, metavar="N", help="runs in parallel (default: %(default)s)")
    add(
        "--launch",
        metavar="COMMAND",
        help='command before `-m offleash.train`, e.g. "accelerate launch --config_file recipes/accelerate/'
        'cpu_zero3.yaml" (default: this Python, one process)',
    )
    add("--margin", type=float, default=0.01, metavar="X", help="loss of pass@1 that counts as no worse (default: .01)")
    add("--report-only", action="store_true", help="train nothing, report the runs that have ended")
    return parser
