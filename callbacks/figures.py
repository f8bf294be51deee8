"""The figures of a run: pass@k of the base and of the policy as it trains; what was lost and gained, against noise.

TensorBoard keeps ten images of a tag, chosen at random but for the last. So every image shows all steps up to its own:
nothing is lost if one is dropped. It scales images to 215 pixels of height ("Time Series") or 350 of width ("Images"),
without interpolation: these are exactly twice that, on white also where the page is dark.
"""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from offleash.callbacks import tags
from offleash.eval.report.figure_style import KEPT, LINES, PAPER, styled
from offleash.eval.report.sanitize import one_line

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Curve = Mapping[int, float]
"""k -> pass@k."""
CARD, PAGE = (3.5, 2.15), (5.6, 4.2)
"""Inches: of a card in a tracker, where text is small, and of a page."""
MOST_CURVES = 6


@styled()
def pass_at_k_figure(
    base: Curve, policy: Mapping[int, Curve], leash: Curve, title: str = "", size: tuple[float, float] = CARD
) -> "Figure":
    """Base, policy by step, and the reweighted base at the last step (`leash`, {} if unknown), over log k."""
    figure = _figure(size)
    axes = figure.subplots()
    axes.plot(list(base), list(base.values()), **LINES["base"], label="base")
    steps = spread_steps(sorted(policy))
    for place, step in enumerate(steps, start=1):
        line = {**LINES["policy"], "alpha": (1 + 3 * place / len(steps)) / 4}
        label = f"policy, step {step}" if place in (1, len(steps)) else None
        axes.plot(list(policy[step]), list(policy[step].values()), **line, label=label)
    if leash:
        words = "KL-optimal reweighting of the\nbase at this pass@1"
        axes.plot(list(leash), list(leash.values()), **LINES["leash"], label=words)
    axes.set_xscale("log", base=2)
    axes.set_xticks(list(base), [str(k) for k in base])
    axes.set(xlabel="k", ylabel="pass@k", ylim=(0, 1.02))
    axes.set_title(one_line(title, 40), parse_math=False)
    axes.legend(loc="lower right", **_legend(size))
    return figure


@styled()
def moves_figure(
    steps: Mapping[int, Mapping[str, float]], units: str, title: str = "", size: tuple[float, float] = CARD
) -> "Figure":
    """Units lost and gained over the measured steps, each in its band of noise; `units`: what they are, in a word."""
    from matplotlib.ticker import MaxNLocator

    figure, places = _figure(size), sorted(steps)
    unit, band = tags.UNIT, tags.UNIT_NOISE
    sides = (("lost", unit.shrunk, band.shrunk), ("gained", unit.expanded, band.expanded))
    axes_2 = figure.subplots(1, 2)
    for axes, (word, counted, noise) in zip(axes_2, sides, strict=True):
        low, high, value = (
            [steps[step].get(metric.tag, math.nan) for step in places] for metric in (noise.low, noise.high, counted)
        )
        axes.fill_between(places, low, high, color=KEPT, alpha=0.35, linewidth=0, label="noise")
        axes.plot(places, value, **LINES["policy"], label="policy")
        axes.set_ylim(bottom=0)
        axes.set(xlabel="step", title=f"{units} {word}")
        axes.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=5))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=4))
    axes_2[1].legend(loc="best", **_legend(size))
    figure.suptitle(one_line(title, 40), parse_math=False, fontsize=9)
    return figure


def spread_steps(steps: Sequence[int], most: int = MOST_CURVES) -> list[int]:
    """The first, the last, and as many between as can be told apart."""
    if len(steps) <= most:
        return list(steps)
    return [steps[round(place * (len(steps) - 1) / (most - 1))] for place in range(most)]


def _figure(size: tuple[float, float]) -> "Figure":
    from matplotlib.figure import Figure

    return Figure(figsize=size, dpi=200, facecolor=PAPER)


def _legend(size: tuple[float, float]) -> dict[str, Any]:
    return {"fontsize": 7, "labelspacing": 0.2, "handlelength": 1.5} if size == CARD else {}
