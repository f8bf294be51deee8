"""offleash variants: exploration variants against plain and controls, with several seeds, and what can be said of it.

    offleash variants --config recipes/lab.yaml --explorers low_lr placebo pass_at_k focal --seeds 5 --out runs/variants

A name is an overlay in recipes/variants/ (or the path of a YAML) with the few settings that make the variant; `plain`,
the recipe itself, is always run. low_lr, high_lr, high_beta, two_updates and placebo are controls. Words after `--` go
to every run:

    offleash variants --config lab --explorers focal --out runs/quick -- --max_steps 100

The same command continues a sweep that was interrupted; what has ended is not run again. In OUT: NAME/seed-S/ (the
runs), report.md, report.html, report.json (keys: offleash.train.variants.record), pareto.svg and tradeoffs.svg (and
.png), and tensorboard/ for the HParams page. Exit status 1 if a run failed or is missing.

A variant is called better if, over the seeds, its NSCR is above plain's, placebo's and low_lr's (with more updates per
rollout than plain also above two_updates', with a higher learning rate above high_lr's), and its pass@1 is not worse
than plain's by more than the margin: p < .05 for all of it together, corrected (Holm) for every variant that was begun
in OUT or is asked for. It escapes if its NSCR is 0 or more at such a pass@1. The report says what else the words mean,
what stopping plain early would have given, and how many rollouts and base samples each variant took.

low_lr has .3 of the recipe's learning rate, high_lr 4 times as much, high_beta 50 times its beta, as suits the lab. For
another recipe write a low_lr.yaml of your own (`scale: {learning_rate: 0.5}`) and name its path.
"""

import argparse
import math
import shlex
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from offleash.eval.errors import ConfigError
from offleash.eval.files import write_atomic
from offleash.train.variants.overlays import find_overlays

if TYPE_CHECKING:
    from offleash.train.variants.runs import Run


def main(words: list[str]) -> int:
    at = words.index("--") if "--" in words else len(words)
    options = _parser().parse_args(words[:at])
    _require_sensible(options)
    from offleash.train.recipe.config import find_recipe  # imports TRL, which --help need not wait for
    from offleash.train.variants.preflight import ANY_PROCESSES
    from offleash.train.variants.runs import plan

    overlays = find_overlays(options.explorers)
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    processes = ANY_PROCESSES if options.launch or options.report_only else 1
    runs = plan(find_recipe(options.config), overlays, seeds, options.out, words[at + 1 :], processes)
    failed = [] if options.report_only else _train(runs, options)
    lacking = [run for run in runs if not run.has_ended]
    if len(lacking) < len(runs):
        try:
            _report(runs, options)
        except OSError as error:
            raise ConfigError(f"cannot write the report in --out {options.out}: {error}") from error
    if lacking:
        told = ", ".join(run.name for run in lacking)
        print(f"offleash: {len(lacking)} of {len(runs)} runs have no result: {told}", file=sys.stderr)
    return 1 if lacking or failed else 0


def _train(runs: list["Run"], options: argparse.Namespace) -> list["Run"]:
    """Those that failed."""
    from offleash.train.variants.sweep import ONE_PROCESS, run_sweep

    launch = tuple(shlex.split(options.launch)) if options.launch else ONE_PROCESS
    if shutil.which(launch[0]) is None:
        raise ConfigError(f"--launch: there is no command {launch[0]!r}")
    return run_sweep(runs, options.out, launch, options.jobs)


def _report(runs: list["Run"], options: argparse.Namespace) -> None:
    from offleash.eval.report.figure_style import image
    from offleash.train.variants.analysis import analyse
    from offleash.train.variants.figures import pareto_figure, tradeoff_figure
    from offleash.train.variants.hparams import write_hparams
    from offleash.train.variants.record import json_report
    from offleash.train.variants.report import html_report, markdown_report, text_report
    from offleash.train.variants.results import read_sweep
    from offleash.train.variants.runs import asked_of, check_unchanged, left_out, tried

    ended = [run for run in runs if run.has_ended]
    for run in ended:
        check_unchanged(run)
    out, sweep = options.out, read_sweep(runs)
    analysis = analyse(sweep.runs, options.margin, tried(runs, out), left_out(runs, out))
    write_atomic(out / "report.json", json_report(sweep, analysis).encode())
    write_atomic(out / "report.md", markdown_report(sweep, analysis).encode())
    write_atomic(out / "report.html", html_report(sweep, analysis).encode())
    for name, figure in (("pareto", pareto_figure(sweep, analysis)), ("tradeoffs", tradeoff_figure(sweep, analysis))):
        for kind in ("png", "svg"):
            write_atomic(out / f"{name}.{kind}", image(figure, kind))
    write_hparams(out / "tensorboard", sweep.runs, {(run.overlay.name, run.seed): asked_of(run) for run in ended})
    sys.stdout.write(text_report(sweep, analysis, max(80, shutil.get_terminal_size((118, 40)).columns)))
    print(f"\nFiles: {out}/report.html, report.md, report.json, pareto.svg, tradeoffs.svg.  tensorboard --logdir {out}")


def _require_sensible(options: argparse.Namespace) -> None:
    for name in ("seeds", "jobs"):
        if getattr(options, name) < 1:
            raise ConfigError(f"--{name} must be at least 1, got {getattr(options, name)}")
    if not (math.isfinite(options.margin) and options.margin >= 0):
        raise ConfigError(f"--margin must be 0 or more, got {options.margin}")


def _parser() -> argparse.ArgumentParser:
    summary, _, rest = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(
        prog="offleash variants",
        usage="offleash variants --config RECIPE --explorers NAME [NAME ...] --out OUT [...] [-- TRAINING FLAGS]",
        description=summary.partition(": ")[2] + "\n" + rest,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--config", required=True, metavar="RECIPE", help="the base recipe, which every variant changes a little")
    add("--explorers", nargs="+", required=True, metavar="NAME", help="names or files of overlays, controls included")
    add("--out", type=Path, required=True, help="the sweep's folder")
    add("--seeds", type=int, default=3, metavar="N", help="runs of each variant (default: %(default)s)")
    add("--first-seed", type=int, default=0, metavar="S", help="seeds S, S+1, ... (default: %(default)s)")
    add("--jobs", type=int, default=1, metavar="N", help="runs at the same time (default: %(default)s)")
    add(
        "--launch",
        metavar="WORDS",
        help='what stands before `-m offleash.train`, e.g. "accelerate launch --config_file recipes/accelerate/'
        'cpu_zero3.yaml" (default: this Python, one process)',
    )
    add("--margin", type=float, default=0.01, metavar="X", help="loss of pass@1 that still is no worse (default: .01)")
    add("--report-only", action="store_true", help="run nothing, report what has ended")
    return parser
