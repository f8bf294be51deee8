"""Show what a policy, or a series of checkpoints, lost and gained against its base.

BASE and POLICY are pools of the same problems, drawn with the same template and sampling, as `offleash sample` or a
monitored run leaves them, or folders that hold one pool per task, which are matched by task. RUN is the folder of a
training run: its base and its steps are found by themselves.

It prints the verdict and one table. --full prints everything: support dynamics (P, S, E, O; SRR, NDR, SDS, NSCR) with
intervals and the part that sampling noise explains, pass@k with the crossing, entropies and failure rates, and units
lost and gained. --html writes a page with all of that, and every unit lost and gained to read.

examples:
  A training run, every measured step (the paper's Table 4):
    offleash compare runs/lab --html series.html

  Two pools; the record for another program:
    offleash compare pools/base pools/policy --html report.html --json report.json
    offleash compare pools/base pools/policy --json - | jq .policies[0].overall.samples

  A base and the steps of a run; the pools of several tasks by name:
    offleash compare base-pools/countdown-3e0a16adf09c7d7c runs/lab/pools
    offleash compare --base base/math500 base/aime24 --policy rl/math500 rl/aime24

  Beside the numbers of "The Invisible Leash", for one of its model pairs (`offleash pairs` lists them):
    offleash compare pools/prorl/base pools/prorl/policy --pair prorl-1.5b-v1

  The flags in a file; those on the command line override it:
    offleash compare --config compare.yaml --k 64
"""

import argparse
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from offleash.eval.commands.config_file import parse_with_config
from offleash.eval.comparison.run import is_run, run_pools
from offleash.eval.console import say
from offleash.eval.errors import ConfigError
from offleash.eval.files import check_writable
from offleash.eval.flags import command_parser
from offleash.eval.storage import path_at

_EXAMPLES, _PAGE_EXAMPLES = 10, 1000
FILES = ("json", "markdown", "latex", "html")
"""The formats that can be written to a file, or to standard output as `-`."""


def main(argv: list[str]) -> int:
    options = parse_with_config(_parser(), argv, alternatives=("pools", "base", "policy"))
    files: dict[str, Path] = {name: path for name in FILES if (path := getattr(options, name)) is not None}
    printed = [name for name, path in files.items() if str(path) == "-"]
    _check(options, files, printed)
    pools, note = _pools(options), _noter(options.quiet)
    from offleash.eval.comparison.compare import compare
    from offleash.eval.report.text import brief_report, painted, text_report
    from offleash.eval.report.write import FORMATS, write_report

    names = ("k", "force", "confidence", "resamples", "seed")
    examples = (_PAGE_EXAMPLES if options.html else _EXAMPLES) if options.examples is None else options.examples
    settings = {name: getattr(options, name) for name in names}
    comparison = compare(*pools, **settings, examples=examples, note=note)
    tables: list[Any] = []
    if options.pair:
        from offleash.eval.comparison.paper import find_pair
        from offleash.eval.report.paper import beside_paper

        comparison, tables = beside_paper(find_pair(options.pair), comparison)
    if printed or not sys.stdout.isatty():  # a terminal shows them in the report
        for warning in comparison.warnings:
            say(f"offleash: WARNING: {warning}", error=True)
    for name, path in files.items():
        if name not in printed:
            write_report(comparison, path, format=name, extra_tables=tables)
            note(f"wrote {path}")
    if printed:
        say(FORMATS[printed[0]](comparison, tables).rstrip("\n"))
    else:
        width = max(80, shutil.get_terminal_size((118, 40)).columns)
        report = text_report if options.full else brief_report
        say(report(comparison, tables, width).rstrip("\n"), paint=painted)
    return 0


def _check(options: argparse.Namespace, files: dict[str, Path], printed: list[str]) -> None:
    """What can be refused before anything is read."""
    if len(printed) > 1:
        raise ConfigError(f"--{' and --'.join(printed)} cannot both be written to standard output (-)")
    for name, path in files.items():
        if name not in printed:
            check_writable(path)
    if options.pair:
        from offleash.eval.comparison.paper import find_pair

        find_pair(options.pair)


def _noter(quiet: bool) -> Callable[[str], None]:
    start = time.perf_counter()

    def note(text: str) -> None:
        if not quiet:
            say(f"offleash: {time.perf_counter() - start:5.0f} s  {text}", error=True)

    return note


def _pools(options: argparse.Namespace) -> tuple[list[Path], list[Any]]:
    """RUN, BASE POLICY ..., or --base and --policy."""
    if not (options.base or options.policy):
        if len(options.pools) == 1 and is_run(options.pools[0]):
            base, steps = run_pools(options.pools[0])
            return [base], [steps]
        if len(options.pools) < 2:
            raise ConfigError(
                "name two pools, offleash compare BASE POLICY [MORE ...], or the folder of a training run, which has a "
                "support.json: offleash compare RUN"
            )
        return options.pools[:1], options.pools[1:]
    if options.pools:
        raise ConfigError("give the pools either as BASE POLICY [MORE ...] or with --base and --policy, not both")
    if not (options.base and options.policy):
        raise ConfigError("--base and --policy must be given together: name the pools of both sides")
    return options.base, options.policy


def _parser() -> argparse.ArgumentParser:
    parser = command_parser("compare", __doc__)
    add = parser.add_argument
    add("pools", nargs="*", type=path_at, metavar="POOL", help="RUN, or BASE POLICY; more than two are a series")
    add("--base", nargs="+", type=path_at, metavar="POOL", help="the base's pools, one per task")
    series = "a policy's pools; repeat for a series"
    add("--policy", nargs="+", type=path_at, action="append", metavar="POOL", help=series)
    add("--k", type=int, help="compare at K draws of each problem (default: all that both sides have)")
    add("--force", action="store_true", help="compare although template or sampling differ, with a warning")
    add("--pair", metavar="NAME", help="show the paper's numbers for this model pair next to ours")
    add("--json", type=Path, metavar="FILE", help="every number with its interval, - for standard output")
    add("--markdown", type=Path, metavar="FILE", help="tables and samples for a README or an issue")
    add("--latex", type=Path, metavar="FILE", help="booktabs tables for a paper")
    add("--html", type=Path, metavar="FILE", help="one self-contained page with figures")
    shown = f"(default: {_EXAMPLES}, with --html {_PAGE_EXAMPLES})"
    add("--examples", type=int, metavar="N", help=f"units lost, and gained, to keep with their texts {shown}")
    add("--full", action="store_true", help="print every table")
    add("--brief", action="store_false", dest="full", help="print the verdict and one table (the default)")
    add("--confidence", type=float, default=0.95, metavar="C", help="level of the intervals (default: %(default)s)")
    add("--resamples", type=int, default=2000, metavar="N", help="bootstrap resamples (default: %(default)s)")
    add("--seed", type=int, default=0, help="seed of the bootstrap (default: %(default)s)")
    add("--quiet", action="store_true", help="no progress messages")
    return parser
