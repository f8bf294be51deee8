"""Interpolate the weights of a policy and its base, without training: (1 - alpha) x policy + alpha x base.

alpha = 0 is the policy, alpha = 1 the base. OUT/all-0.25 (with --layers late OUT/late-0.25) is a model folder like any
other, with the policy's tokenizer. Both models have to fit in memory, and another copy of the policy. LoRA adapters are
merged.

With a task whose correct answers can be listed with all their texts (countdown with strict, colouring, change), the
true probability of each gives the curve of pass@1 against NSCR at every floor eps, with no sampling noise; in brackets,
that of the KL-optimal reweighting of the base at the same pass@1. It is printed, and stored in OUT/all.json
(late.json). With --no-save only the curve is made.

examples:
    offleash soup lab runs/lab/final --alpha 0.25 0.5 0.75 --out runs/soup
    offleash soup lab runs/lab/final --alpha 0 0.25 0.5 0.75 1 --layers late --out runs/soup \\
        --task countdown --task-args '{"split": "validation", "n": 64, "strict": true}'
"""

import argparse
import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offleash.eval.console import say
from offleash.eval.errors import ConfigError
from offleash.eval.files import write_atomic
from offleash.eval.flags import command_parser, json_option
from offleash.eval.report.numbers import share
from offleash.eval.tasks import check_task_name

if TYPE_CHECKING:
    from offleash.eval.scoring.soup import Point


def main(argv: list[str]) -> int:
    options = _parser().parse_args(argv)
    folders = {alpha: options.out / f"{options.layers}-{alpha:g}" for alpha in dict.fromkeys(options.alpha)}
    _check(options, folders.values())
    from offleash.eval.scoring.exact import exact_units  # torch, which --help does without
    from offleash.eval.scoring.soup import check_alpha, exact_point, interpolated, load_pair, save

    for alpha in folders:
        check_alpha(alpha)
    task = _task(options)
    say(f"offleash: loading {options.base} and {options.policy}", error=True)
    pair = load_pair(options.base, options.policy)
    options.out.mkdir(parents=True, exist_ok=True)

    def probabilities(model: Any) -> Any:
        return exact_units(model, pair.tokenizer, task, task.problems, max_new_tokens=options.max_new_tokens)

    base = None if task is None else probabilities(pair.base)
    points = []
    for alpha, folder in folders.items():
        with interpolated(pair, alpha, options.layers) as model:
            if not options.no_save:
                save(model, pair.tokenizer, folder)
                say(f"saved {folder}")
            if base is not None:
                points.append(
                    exact_point(alpha, base.unit_problem, base.probability_u, probabilities(model).probability_u)
                )
    if points:
        path = options.out / f"{options.layers}.json"
        write_atomic(path, json.dumps(_record(options, points), indent=1).encode())
        say(f"{_text(points)}\nstored {path}")
    return 0


def _text(points: "Sequence[Point]") -> str:
    rows = [["alpha", "pass@1", *(f"NSCR({eps:g})" for eps in points[0].nscr)]]
    for point in points:
        cells = [f"{share(value)} ({share(point.leash_nscr[eps])})" for eps, value in point.nscr.items()]
        rows.append([f"{point.alpha:g}", share(point.pass_at_1), *cells])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    return "\n".join([*lines, "in brackets: KL-optimal reweighting of the base at this pass@1"])


def _record(options: argparse.Namespace, points: "Sequence[Point]") -> dict[str, Any]:
    """With null for what is not defined."""

    def by_floor(values: dict[float, float]) -> dict[str, float | None]:
        return {f"{eps:g}": None if math.isnan(value) else value for eps, value in values.items()}

    rows = [
        {**point._asdict(), "nscr": by_floor(point.nscr), "leash_nscr": by_floor(point.leash_nscr)} for point in points
    ]
    return {"base": options.base, "policy": options.policy, "layers": options.layers, "points": rows}


def _task(options: argparse.Namespace) -> Any:
    if options.task is None:
        return None
    from offleash.eval.scoring.exact import check_enumerable
    from offleash.eval.tasks import load_task

    return check_enumerable(load_task(options.task, **json_option(options.task_args, "--task-args")))


def _check(options: argparse.Namespace, folders: Iterable[Path]) -> None:
    if options.task is not None:
        check_task_name(options.task)
    if options.no_save and options.task is None:
        raise ConfigError("--no-save without --task would do nothing: leave one out")
    if not options.no_save and (present := [folder for folder in folders if folder.exists()]):
        raise ConfigError(f"{present[0]} exists: remove it, choose another --out, or give --no-save")


def _parser() -> argparse.ArgumentParser:
    parser = command_parser(
        "soup",
        __doc__,
        usage="offleash soup BASE POLICY --alpha A [A ...] [--layers all|late] --out OUT [--task TASK]",
    )
    add = parser.add_argument
    add("base", metavar="BASE", help="hub id, folder, adapter's folder, or lab")
    add("policy", metavar="POLICY", help="what was trained from it")
    add("--alpha", type=float, nargs="+", required=True, metavar="A", help="weight of the base: 0 policy, 1 base")
    add("--layers", choices=("all", "late"), default="all", help="all, or the later half (default: %(default)s)")
    add("--out", type=Path, required=True, help="folder of the models")
    add("--task", help="a task whose correct answers are listed with all their texts: print the exact curve")
    add("--task-args", default="{}", metavar="JSON", help="arguments of the task")
    add("--max-new-tokens", type=int, metavar="N", help="longer answers have probability 0 (default: no limit)")
    add("--no-save", action="store_true", help="only the curve")
    return parser
