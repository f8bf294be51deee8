"""Where in a text a policy lost the answers of its base, and whether it can still complete them.

Of every correct answer whose base probability is --eps or more, the change of its log-probability is split by position:
first token, branching points (where texts of different correct answers part), other tokens. "Still executable" forces
a lost answer's text up to its branching point and gives the probability to complete it. All of it is exact: the texts
of all correct answers are enumerated, nothing is sampled.

BASE and POLICY are files that a run with monitor_exact wrote, or models; models need --task. Of several policies of one
base (other seeds, say) the means are over the units of all.

examples:
    offleash where runs/lab/exact/step-000000.npz runs/lab/exact/step-000200.npz
    offleash where lab runs/lab/final --task countdown --task-args '{"split": "probe", "n": 64, "strict": true}' \\
        --max-new-tokens 20 --figure where.png
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offleash.eval.console import say
from offleash.eval.errors import ConfigError
from offleash.eval.files import check_writable, write_atomic
from offleash.eval.flags import command_parser, json_option
from offleash.eval.tasks import check_task_name

if TYPE_CHECKING:
    from offleash.eval.scoring.exact import ExactUnits


def main(argv: list[str]) -> int:
    options = _parser().parse_args(argv)
    for path in (options.json, options.markdown, options.figure):
        if path is not None:
            check_writable(path)
    if options.figure is not None and options.figure.suffix not in (".png", ".svg"):
        raise ConfigError(f"--figure must end in .png or .svg, got {options.figure}")
    task = _task(options)
    from offleash.eval.report.where import json_report, markdown_report, text_report, where_figure
    from offleash.eval.scoring.positions import pooled, text_paths, where_lost  # torch, which --help does without

    base = _units(options.base, task, options)
    paths = text_paths(base)
    found = pooled([where_lost(base, _units(side, task, options), options.eps, paths) for side in options.policy])
    say(text_report(found))
    if options.json is not None:
        write_atomic(options.json, json_report(found, options.base, options.policy).encode())
    if options.markdown is not None:
        write_atomic(options.markdown, f"{markdown_report(found)}\n".encode())
    if options.figure is not None:
        from offleash.eval.report.figure_style import image

        write_atomic(options.figure, image(where_figure(found), options.figure.suffix[1:]))
    return 0


def _task(options: argparse.Namespace) -> Any:
    if all(_is_file(side) for side in (options.base, *options.policy)):
        return None
    if options.task is None:
        raise ConfigError("name the --task whose answers are enumerated: only .npz files of a run come without one")
    check_task_name(options.task)
    from offleash.eval.scoring.exact import check_enumerable
    from offleash.eval.tasks import load_task

    return check_enumerable(load_task(options.task, **json_option(options.task_args, "--task-args")))


def _is_file(side: str) -> bool:
    return side.endswith(".npz")


def _units(side: str, task: Any, options: argparse.Namespace) -> "ExactUnits":
    from offleash.eval.engines.model import resolve_model
    from offleash.eval.scoring.exact import ExactUnits, exact_units
    from offleash.eval.scoring.teacher_forcing import load_model

    if _is_file(side):
        return ExactUnits.load(Path(side))
    say(f"offleash: computing the probabilities of all correct answers under {side}", error=True)
    source = resolve_model(side)
    return exact_units(
        load_model(source),
        source.tokenizer,
        task,
        task.problems,
        temperature=options.temperature,
        max_new_tokens=options.max_new_tokens,
    )


def _parser() -> argparse.ArgumentParser:
    parser = command_parser(
        "where", __doc__, usage="offleash where BASE POLICY... [--task TASK] [--eps EPS] [--figure FILE]"
    )
    add = parser.add_argument
    add("base", metavar="BASE", help="exact/step-000000.npz of a run; or hub id, folder, adapter's folder, or lab")
    add("policy", metavar="POLICY", nargs="+", help="exact/step-*.npz of such runs, or what was trained from the base")
    add("--eps", type=float, default=1e-3, help="probability from which a unit is in support (default: %(default)s)")
    add("--task", help="for models: a task whose correct answers are listed with all their texts")
    add("--task-args", default="{}", metavar="JSON", help="arguments of the task")
    add("--max-new-tokens", type=int, metavar="N", help="for models: longer texts count as truncated")
    add("--temperature", type=float, default=1.0, help="for models: divides the logits (default: %(default)s)")
    add("--json", type=Path, metavar="FILE", help="write the numbers")
    add("--markdown", type=Path, metavar="FILE", help="write the tables")
    add("--figure", type=Path, metavar="FILE", help="write the figure: .png or .svg")
    return parser
