"""What a lab's base is like before any reinforcement learning, exactly: every correct completion is enumerated.

The table says how often the base is right, how many solutions a problem has, and how their probabilities are spread.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from offleash.eval.problem import Problem
from offleash.eval.scoring.exact import exact_units
from offleash.recipes.lab.teaching import LabTask

BUDGETS = (1, 64, 8192)
FLOORS = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6)
QUANTILES = (1.0, 0.95, 0.75, 0.5, 0.25, 0.05)


def properties(model: Any, tokenizer: Any, task: LabTask) -> dict[str, float]:
    """The rows of the table for the problems of one task."""
    units = exact_units(model, tokenizer, task, task.problems)
    texts_p = [text_count(task, problem) for problem in task.problems]
    pass_p = np.minimum(np.bincount(units.unit_problem, units.probability_u, minlength=len(texts_p)), 1.0)
    return {
        "problems": len(pass_p),
        **{f"pass@{k}": float(np.mean(-np.expm1(k * np.log1p(-pass_p.clip(max=1 - 1e-12))))) for k in BUDGETS},
        "problems below 1/8192": float(np.mean(pass_p < 1 / 8192)),
        "problems below 1e-5": float(np.mean(pass_p < 1e-5)),
        "solutions per problem": len(units.unit_answer) / len(pass_p),
        "texts per problem": float(np.mean(texts_p)),
        **{f"solution probability, quantile {q:g}": float(np.quantile(units.probability_u, q)) for q in QUANTILES},
        **{f"solutions below {floor:g}": float(np.mean(units.probability_u < floor)) for floor in FLOORS},
    }


def text_count(task: LabTask, problem: Problem) -> int:
    return sum(len(task.spellings(problem, answer)) for answer in task.correct_answers(problem))


def table(columns: Sequence[tuple[str, dict[str, float]]]) -> str:
    """A Markdown table: one row per property, one column per set of problems."""
    heads = "".join(f" {name} |" for name, _ in columns)
    lines = [f"| |{heads}", "|---|" + "---|" * len(columns)]
    for row in columns[0][1]:
        cells = "".join(f" {shown(values[row])} |" for _, values in columns)
        lines.append(f"| {row} |{cells}")
    return "\n".join(lines)


def shown(value: float) -> str:
    """Four digits after the point, and a power of ten for what that would hide."""
    if value == int(value):
        return str(int(value))
    return f"{value:.1e}" if value < 1e-3 else f"{value:.4g}"
