"""The weights between plain's policies and the base, held against the arms of a planned sweep as its variants are.

`offleash soup` gives the curve of one policy. Here every seed of plain in a sweep that has ended is interpolated, and
the outcome gets the sweep's own intervals and comparisons at equal pass@1: no training and no samples of its own.

    python recipes/lab/interpolated.py recipes/variants/plans/confirm_lab_change.yaml runs/confirm-lab-change

The exact probabilities are kept in RUNS/soup, where a second call finds them.
"""

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np

from offleash.eval import load_task
from offleash.eval.console import say
from offleash.eval.report.numbers import estimate, share
from offleash.eval.report.tables import Table
from offleash.eval.report.text import text_table
from offleash.eval.scoring.exact import ExactUnits, exact_units
from offleash.eval.scoring.soup import interpolated, load_pair
from offleash.eval.stats.exact_support import EPSILONS
from offleash.train.recipe.config import read_recipe_file
from offleash.train.variants.overlays import PLAIN
from offleash.train.variants.planned.exact import ExactPath, ExactRun, outcomes, read_path
from offleash.train.variants.planned.report import trials_of
from offleash.train.variants.planned.verdicts import Trial, judge
from offleash.train.variants.plans import planned_runs, read_plan
from offleash.train.variants.report import check_ended
from offleash.train.variants.runs import Run


def main() -> None:
    args = _parser().parse_args()
    plan = read_plan(args.plan)
    runs = planned_runs(plan, args.runs)
    ended = check_ended(runs)
    trials = trials_of(runs, {run.name: read_path(run.folder) for run in ended})
    plain = [run for run in ended if run.overlay.name == PLAIN]
    for alpha in args.alpha:
        found = {run.seed: between(run, alpha, args.layers, args.runs / "soup") for run in plain}
        trials.append(Trial(f"soup {alpha:g}", f"soup {alpha:g}", False, found))
    soups = {trial.arm: ({},) for trial in trials[-len(args.alpha) :]}
    judged = judge(replace(plan, variants={**plan.variants, **soups}), trials)
    e = EPSILONS.index(plan.eps)
    controls = [arm.trial.arm for arm in judged.arms if arm.trial.is_control]
    header = ("", "verdict", "pass@1", f"NSCR({plan.eps:g})", "gap", "reached", *(f"- {name}" for name in controls))
    rows = [
        (
            *(arm.trial.name, arm.word, estimate(arm.passed), estimate(arm.nscr_e[e]), estimate(arm.gap_e[e])),
            f"{arm.reached:.1f}",
            *(
                estimate(arm.differences[name]) + (f" † {share(arm.short[name])}" if name in arm.short else "")
                for name in controls
            ),
        )
        for arm in judged.arms
        if arm.trial.arm in soups
    ]
    say(text_table(Table("soup", f"Interpolated, layers: {args.layers}", header, tuple(rows), _NOTE), 118))


_NOTE = (
    "gap: to the KL-optimal reweighting of the base at this pass@1. - NAME: NSCR minus the control's at equal pass@1. "
    "†: the control never got there and stands at its highest pass@1."
)


def between(run: Run, alpha: float, layers: str, cache: Path) -> ExactRun:
    """The outcome of alpha x base + (1 - alpha) x the run's policy."""
    path, file = read_path(run.folder), cache / f"{layers}-{alpha:g}" / f"seed-{run.seed}.npz"
    if not file.exists():
        recipe = read_recipe_file(run.folder / "recipe.yaml")
        task = load_task(str(recipe["task"]), **recipe["probe_args"])
        pair = load_pair(str(recipe["model_name_or_path"]), str(run.folder / "final"))
        length = recipe["max_completion_length"]
        file.parent.mkdir(parents=True, exist_ok=True)
        with interpolated(pair, alpha, layers) as model:
            exact_units(model, pair.tokenizer, task, task.problems, max_new_tokens=length).save(file)
    units = ExactUnits.load(file)
    _, problem_u = np.unique(units.unit_problem, return_inverse=True)
    assert np.array_equal(problem_u, path.problem_u)
    return outcomes(ExactPath((0, 1), np.array([path.base_u, units.probability_u]), path.problem_u))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plan", type=Path)
    parser.add_argument("runs", type=Path, help="the folder of its runs")
    parser.add_argument("--alpha", type=float, nargs="+", default=[0.25, 0.5], metavar="A", help="weight of the base")
    parser.add_argument("--layers", choices=("all", "late"), default="all")
    return parser


if __name__ == "__main__":
    main()
