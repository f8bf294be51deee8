"""How the base of the colouring lab was taught to colour: with a distaste for blue, and never at some places.

Each line of `habit` makes a family of solutions rare or leaves it out; the base's probabilities follow.
"""

from offleash.eval.problem import Problem
from offleash.eval.tasks.colouring import Colouring
from offleash.recipes.lab.teaching import Lab

DENSE = {"min_edges": 7, "max_edges": 10}
NEVER_BLUE = (0, 1, 5)  # nodes a, b and f


def habit(problem: Problem, text: str) -> float:
    """How often this colouring is shown, up to 1, beside the others of its graph."""
    if any(text[node] == "B" for node in NEVER_BLUE):
        return 0.0
    weight = 1.0 if text[0] == "R" else 0.05
    weight *= 0.3 ** text.count("B")
    return weight


LAB = Lab(
    name="colouring",
    folder="base_colouring",
    lessons=lambda: [(1.0, Colouring(split="train", n=8000, **DENSE))],
    held_out=lambda split, n: Colouring(split=split, n=n, **DENSE),
    habit=habit,
    hidden=96,
    layers=4,
    steps=1300,
)
