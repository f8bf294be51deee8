"""How the base of the change lab was taught to make change: large coins first, and never with five coins.

Each line of `habit` makes a family of solutions or of orders rare or leaves it out; the base's probabilities follow.
"""

from itertools import pairwise

from offleash.eval.problem import Problem
from offleash.eval.tasks.change import Change
from offleash.recipes.lab.teaching import Lab


def habit(problem: Problem, text: str) -> float:
    """How often this completion is shown, up to 1, beside the others of its problem."""
    totals = [0, *map(int, text.split("|")[0].split(">"))]
    order = [after - before for before, after in pairwise(totals)]
    if len(order) >= 5:
        return 0.0
    weight = 0.05 ** sum(first < second for first, second in pairwise(order))
    weight *= 0.05 if min(problem.meta["values"]) in order else 1.0
    weight *= 0.3 if len(set(order)) == len(order) else 1.0
    weight *= 0.01 if max(map(order.count, order)) >= 3 else 1.0
    return weight


LAB = Lab(
    name="change",
    folder="base_change",
    lessons=lambda: [(1.0, Change(split="train", n=12_000))],
    held_out=lambda split, n: Change(split=split, n=n),
    habit=habit,
    hidden=96,
    layers=4,
    steps=1800,
)
