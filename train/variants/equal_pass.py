"""Where along a run its pass@1 was that of another run: the point at which stopping early would have given the same.

pass@1 of a run can be noisy, and the first crossing of a noisy curve comes too early. So the curve is first made
monotone by isotonic regression, and the last point of a flat piece is taken (`position`). An exact pass@1 has no such
noise: a fall is a fall, and the run was there when it first was (`first_reached`).
"""

from collections.abc import Sequence
from typing import NamedTuple


class Position(NamedTuple):
    """Between measurement `at` and the one after it, the fraction `part` of the way."""

    at: int
    part: float

    def between(self, values: Sequence[float]) -> float:
        """The value there, interpolated linearly."""
        before = values[self.at]
        return before if not self.part else before + self.part * (values[self.at + 1] - before)


def position(passes: Sequence[float], target: float) -> Position:
    """Where pass@1 was `target`; the end of the run if it never reached it, the start if it was always above it."""
    fit = rising(passes)
    at = max((i for i, value in enumerate(fit) if value <= target), default=0)
    if at == len(fit) - 1 or target <= fit[at]:
        return Position(at, 0.0)
    return Position(at, (target - fit[at]) / (fit[at + 1] - fit[at]))


def first_reached(passes: Sequence[float], target: float) -> Position:
    """Where an exact pass@1 first was `target`; its highest point if it never was, the start if it began above."""
    if target <= passes[0]:
        return Position(0, 0.0)
    after = next((i for i, value in enumerate(passes) if value >= target), None)
    if after is None:
        return Position(max(range(len(passes)), key=passes.__getitem__), 0.0)
    return Position(after - 1, (target - passes[after - 1]) / (passes[after] - passes[after - 1]))


def rising(values: Sequence[float]) -> list[float]:
    """The closest curve that never falls, by least squares (isotonic regression)."""
    from scipy.optimize import isotonic_regression

    fitted: list[float] = isotonic_regression(values).x.tolist()
    return fitted
