"""The figure of a run: pass@k of the base and of the policy as it trains.

TensorBoard keeps ten images of a tag, chosen at random but for the last. So every image shows all steps up to its own:
nothing is lost if one is dropped.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from offleash.eval.report.figure_style import LINES, PAPER, styled
from offleash.eval.report.sanitize import one_line

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Curve = Mapping[int, float]
"""k -> pass@k."""
MOST_CURVES = 6


@styled()
def pass_at_k_figure(base: Curve, policy: Mapping[int, Curve], leash: Curve, title: str = "") -> "Figure":
    """Base, policy by step, and the reweighted base at the last step (`leash`, {} if unknown), over log k."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.6, 4.2), dpi=200, facecolor=PAPER)
    axes = figure.subplots()
    axes.plot(list(base), list(base.values()), **LINES["base"], label="base")
    steps = spread_steps(sorted(policy))
    for place, step in enumerate(steps, start=1):
        line = {**LINES["policy"], "alpha": (1 + 3 * place / len(steps)) / 4}
        axes.plot(list(policy[step]), list(policy[step].values()), **line, label=f"policy, step {step}")
    if leash:
        words = "KL-optimal reweighting of the\nbase at this pass@1"
        axes.plot(list(leash), list(leash.values()), **LINES["leash"], label=words)
    axes.set_xscale("log", base=2)
    axes.set_xticks(list(base), [str(k) for k in base])
    axes.set(xlabel="k", ylabel="pass@k", ylim=(0, 1.02))
    axes.set_title(one_line(title, 40), parse_math=False)
    axes.legend(loc="lower right")
    return figure


def spread_steps(steps: Sequence[int], most: int = MOST_CURVES) -> list[int]:
    """The first, the last, and as many between as can be told apart."""
    if len(steps) <= most:
        return list(steps)
    return [steps[round(place * (len(steps) - 1) / (most - 1))] for place in range(most)]
