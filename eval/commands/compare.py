"""Show what a policy, or a series of checkpoints, lost and gained against its base.

Two pools, drawn from the same problems with the same template and sampling, as `offleash sample` or a monitored run
leaves them:

    offleash compare pools/base pools/policy
    offleash compare pools/base pools/policy --html report.html --json report.json

A series of checkpoints (the paper's Table 4), here every pool of a training run:

    offleash compare base-pools/countdown-3e0a16adf09c7d7c runs/lab/pools --html series.html

Several tasks: folders that hold one pool per task are matched by task, or name the pools of each side:

    offleash compare --base base/math500 base/aime24 --policy rl/math500 rl/aime24

Beside the numbers of "The Invisible Leash", for one of its model pairs (`offleash pairs` lists them):

    offleash compare pools/prorl/base pools/prorl/policy --pair prorl-1.5b-v1

It prints support dynamics (P, S, E, O; SRR, NDR, SDS, NSCR) with intervals and the part that sampling noise explains,
pass@k with the crossing, entropies and failure rates, and the units lost and gained.
"""

import argparse
import shutil
import time
from pathlib import Path
from typing import Any

from offleash.eval.comparison.compare import compare
from offleash.eval.comparison.paper import find_pair
from offleash.eval.console import say
from offleash.eval.errors import ConfigError
from offleash.eval.report.paper import beside_paper
from offleash.eval.report.tables import Table
from offleash.eval.report.text import text_report
from offleash.eval.report.write import FORMATS, check_report_path, write_report


def main(argv: list[str]) -> int:
    options = _parser().parse_args(argv)
    pair = find_pair(options.pair) if options.pair else None
    files: dict[str, Path] = {
        name: getattr(options, name) for name in FORMATS if getattr(options, name, None) is not None
    }
    for name, path in files.items():
        check_report_path(path, name)
    start = time.perf_counter()

    def note(text: str) -> None:
        if not options.quiet:
            say(f"offleash: {time.perf_counter() - start:5.0f} s  {text}", error=True)

    names = ("k", "force", "confidence", "resamples", "seed", "examples")
    comparison = compare(*_pools(options), **{name: getattr(options, name) for name in names}, note=note)
    tables: list[Table] = []
    if pair is not None:
        comparison, tables = beside_paper(pair, comparison)
    for warning in comparison.warnings:
        say(f"offleash: WARNING: {warning}", error=True)
    for name, path in files.items():
        write_report(comparison, path, format=name, extra_tables=tables)
        note(f"wrote {path}")
    width = max(80, shutil.get_terminal_size((118, 40)).columns)
    say(text_report(comparison, tables, width).rstrip("\n"))
    return 0


def _pools(options: argparse.Namespace) -> tuple[list[Path], list[Any]]:
    """BASE POLICY ..., or --base and --policy."""
    if not (options.base or options.policy):
        if len(options.pools) < 2:
            raise ConfigError("at least two pools are needed: offleash compare BASE POLICY [MORE ...]")
        return options.pools[:1], options.pools[1:]
    if options.pools:
        raise ConfigError("give the pools either as BASE POLICY [MORE ...] or with --base and --policy, not both")
    if not (options.base and options.policy):
        raise ConfigError("--base and --policy must be given together: name the pools of both sides")
    return options.base, options.policy


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="offleash compare", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("pools", nargs="*", type=Path, metavar="BASE POLICY", help="folders of pools; more than two are a series")
    add("--base", nargs="+", type=Path, metavar="POOL", help="the base's pools, one per task")
    add("--policy", nargs="+", type=Path, action="append", metavar="POOL", help="a policy's pools; repeat for a series")
    add("--k", type=int, help="compare at K draws of each problem (default: all that both sides have)")
    add("--force", action="store_true", help="compare although template or sampling differ, with a warning")
    add("--pair", metavar="NAME", help="show the paper's numbers for this model pair next to ours")
    add("--json", type=Path, metavar="FILE", help="every number with its interval; keys: offleash.eval.report.record")
    add("--markdown", type=Path, metavar="FILE", help="tables and samples for a README or an issue")
    add("--latex", type=Path, metavar="FILE", help="booktabs tables for a paper")
    add("--html", type=Path, metavar="FILE", help="one self-contained page with figures")
    add("--examples", type=int, default=10, metavar="N", help="lost and gained units to show (default: %(default)s)")
    add("--confidence", type=float, default=0.95, metavar="C", help="level of the intervals (default: %(default)s)")
    add("--resamples", type=int, default=2000, metavar="N", help="bootstrap resamples (default: %(default)s)")
    add("--seed", type=int, default=0, help="seed of the bootstrap (default: %(default)s)")
    add("--quiet", action="store_true", help="no progress messages")
    return parser
