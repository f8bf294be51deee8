"""Compare exploration variants with plain and with controls, over several seeds.

A plan (--plan) fixes recipe, arms, trials, seeds, problems and the outcome before the first run (its keys:
offleash.train.variants.plans). Its report judges that outcome and nothing else: exact NSCR at the plan's floor, against
plain and the controls at equal pass@1, and against the leash line, the KL-optimal reweighting of the base at that
pass@1. Once a run has begun, a plan may only grow by seeds, arms or trials.

Without a plan the report is a description, with no verdict. A name is an overlay in recipes/variants/ (or the path of a
YAML file) with the few settings that define the variant, or an explorer of your own, `my_module:Safe` or
`my_module:Safe{weight: 0.2}`. `plain`, the recipe itself, is always run. Arguments after `--` are passed to every run.

The same command resumes an interrupted sweep; finished runs are not repeated. OUT contains NAME/seed-S/ (the runs; with
a plan without checkpoints and samples once they have ended), report.md, report.html, report.json (keys:
offleash.train.variants.report), the figures as .svg and .png, and tensorboard/ for the HParams page. The exit status is
1 if a run failed or is missing.

low_lr has 0.3 times the recipe's learning rate, high_lr 8 times, high_beta 50 times its beta, which suits the lab. For
another recipe write your own low_lr.yaml (`scale: {learning_rate: 0.5}`) and pass its path.

examples:
    offleash variants --plan recipes/variants/plans/screen_lab.yaml --out runs/screen-lab --jobs 2
    offleash variants --config lab --explorers low_lr placebo pass_at_k --seeds 5 --out runs/variants
    offleash variants --config lab --explorers focal --out runs/quick -- --max_steps 100
"""

import argparse
import shlex
import shutil
from pathlib import Path

from offleash.eval.console import say
from offleash.eval.errors import ConfigError
from offleash.eval.flags import command_parser
from offleash.train.recipe.catalogue import find_recipe

_NAMED = 8
"""Runs without a result that are named; the report has them all."""


def main(argv: list[str]) -> int:
    at = argv.index("--") if "--" in argv else len(argv)
    options = _parser().parse_args(argv[:at])
    _check_options(options, argv[at + 1 :])
    # TRL and torch: only if the flags can be used.
    from offleash.train.variants.overlays import ANY_PROCESSES, find_overlays
    from offleash.train.variants.planned.report import write_planned
    from offleash.train.variants.plans import planned_runs, read_plan, record_plan, stored_plans
    from offleash.train.variants.report import write_described
    from offleash.train.variants.runs import check_runs, make_runs
    from offleash.train.variants.sweep import ONE_PROCESS, run_sweep

    out = options.out
    processes = ANY_PROCESSES if options.launch or options.report_only else 1
    if options.plan:
        plan = read_plan(options.plan)
        versions = record_plan(plan, out)
        runs = planned_runs(plan, out, processes)
    elif stored_plans(out):
        raise ConfigError(f"{out} is the folder of a planned sweep: use --plan, or another --out")
    else:
        seeds = range(options.first_seed, options.first_seed + options.seeds)
        overlays = find_overlays(options.explorers, out)
        runs = make_runs([find_recipe(options.config)], overlays, seeds, out, argv[at + 1 :])
        check_runs(runs, processes)
    launch = tuple(shlex.split(options.launch)) if options.launch else ONE_PROCESS
    failed = []
    if not options.report_only:
        failed = run_sweep(runs, out, launch, options.jobs, numbers_only=options.plan is not None)
    lacking = [run for run in runs if not run.has_ended]
    if len(lacking) < len(runs):
        width = max(80, shutil.get_terminal_size((118, 40)).columns)
        text = write_planned(plan, versions, runs, out, width) if options.plan else write_described(runs, out, width)
        say(text.rstrip("\n"))
        say(f"\nFiles: {out}/report.html, report.md, report.json and the figures.")
        say(f"TensorBoard: tensorboard --logdir {out}")
    if lacking:
        names = ", ".join(run.name for run in lacking[:_NAMED])
        more = f" and {len(lacking) - _NAMED} more" if len(lacking) > _NAMED else ""
        say(f"offleash: {len(lacking)} of {len(runs)} runs have no result: {names}{more}", error=True)
    return 1 if lacking or failed else 0


def _check_options(options: argparse.Namespace, extra: list[str]) -> None:
    for name in ("seeds", "jobs"):
        if getattr(options, name) < 1:
            raise ConfigError(f"--{name} must be at least 1, got {getattr(options, name)}")
    if options.plan and (options.config or options.explorers or extra):
        raise ConfigError("--plan has the recipe, the variants and all settings: remove --config, --explorers and `--`")
    if not options.plan and not (options.config and options.explorers):
        raise ConfigError("give --plan FILE, or --config RECIPE and --explorers NAME ...")
    if options.config:
        find_recipe(options.config)


def _parser() -> argparse.ArgumentParser:
    parser = command_parser(
        "variants",
        __doc__,
        usage="offleash variants --plan FILE --out OUT [...]\n"
        "       offleash variants --config RECIPE --explorers NAME [NAME ...] --out OUT [...] [-- TRAINING FLAGS]",
    )
    add = parser.add_argument
    add("--plan", type=Path, metavar="FILE", help="the plan of the sweep; without one nothing is judged")
    add("--config", metavar="RECIPE", help="the base recipe that the overlays modify")
    add("--explorers", nargs="+", metavar="NAME", help="overlays (names or files) and your own explorers")
    add("--out", type=Path, required=True, help="folder of the sweep")
    add("--seeds", type=int, default=3, metavar="N", help="without a plan: seeds per variant (default: %(default)s)")
    add("--first-seed", type=int, default=0, metavar="S", help="without a plan: S, S+1, ... (default: %(default)s)")
    add("--jobs", type=int, default=1, metavar="N", help="runs in parallel (default: %(default)s)")
    add(
        "--launch",
        metavar="COMMAND",
        help='command before `-m offleash.train`, e.g. "accelerate launch --config_file recipes/accelerate/'
        'cpu_zero3.yaml" (default: this Python, one process)',
    )
    add("--report-only", action="store_true", help="train nothing, report the runs that have ended")
    return parser
