"""TensorBoard's tab "Custom Scalars": charts that are drawn as they are.

Every chart is a Margin chart: a line and a band. TensorBoard smooths other lines (.6) and hides the first and the last
of few points as outliers; a Margin chart is neither smoothed nor clipped. One line per run, so that a color is a run
and every marker the same. The band is what the line is to be read against: noise, an interval, or the base.

TensorBoard refuses a Margin chart whose three tags were not logged at the same steps: `with_whole_bands`.
"""

import math
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from offleash.callbacks import tags
from offleash.callbacks.tags import Bounds, Metric
from offleash.eval.stats.support import METRICS


class Chart(NamedTuple):
    title: str
    value: str
    low: str
    high: str


Layout = dict[str, dict[str, list[Any]]]


def charts(temperature: float, k: int, exact: bool) -> dict[str, list[Chart]]:
    """By category; `k` is the largest budget of pass@k."""
    unit, noise, line = tags.UNIT, tags.UNIT_NOISE, tags.LEASH
    intervals = tags.INTERVAL
    found = {
        "Against noise. Band: a second sample of the base, 19 times in 20. Outside it, something changed": [
            _within("pass@1", tags.pass_at(1), tags.PASS_AT_1_NOISE),
            _within("units lost", unit.shrunk, noise.shrunk),
            _within("units gained", unit.expanded, noise.expanded),
            _within("NSCR, (gained - lost) / union", unit.nscr, noise.nscr),
            _within("SRR, fraction of base units retained", unit.srr, noise.srr),
            _within("NDR, fraction of policy units that are new", unit.ndr, noise.ndr),
        ],
        "Against the base. Band: the gap to the base": [
            _gap(f"pass@{k}", tags.pass_at(k)),
            _gap("answer entropy (nats)", tags.ANSWER_ENTROPY),
            _gap("token entropy (nats)", tags.token_entropy(temperature)),
        ],
        "95 % intervals, over problems": [
            _within("pass@1", tags.pass_at(1), intervals.pass_at_1),
            _within("units lost", unit.shrunk, intervals.shrunk),
            _within("units gained", unit.expanded, intervals.expanded),
            _within("NSCR", unit.nscr, Bounds(line.policy_nscr_low, line.policy_nscr_high)),
            _within("NSCR less that of the KL-optimal reweighting of the base at this pass@1", line.above,
                    Bounds(line.above_low, line.above_high)),
            _within("SRR", unit.srr, intervals.srr),
            _within("NDR", unit.ndr, intervals.ndr),
        ],
        "Units hit 5 times or more, against noise": [
            _within(f"{name.upper()} at 5 hits or more", getattr(unit, f"{name}_hits5"), bounds)
            for name, bounds in zip(METRICS, noise[-len(METRICS) :], strict=True)
        ],
        "Problems, against noise": [
            _within(title, getattr(tags.PROBLEM, name), getattr(tags.PROBLEM_NOISE, name))
            for title, name in (("problems lost", "shrunk"), ("problems gained", "expanded"), ("NSCR", "nscr"),
                                ("SRR", "srr"), ("NDR", "ndr"), ("SRR at 5 hits or more", "srr_hits5"))
        ],
    }  # fmt: skip
    if exact:
        found["Exact, by enumeration. Band: up to the KL-optimal reweighting of the base at this pass@1"] = [
            Chart(f"NSCR({eps:g})", nscr.tag, nscr.tag, tags.at_floor(tags.LEASH_NSCR, eps).tag)
            for eps in (1e-2, 1e-3, 1e-4)
            for nscr in [tags.at_floor(tags.EXACT_NSCR, eps)]
        ]
    return found


def custom_layout(temperature: float, k: int, exact: bool = False, known: Collection[str] | None = None) -> Layout:
    """What SummaryWriter.add_custom_scalars takes; `known`: the tags that were logged, if not all are."""
    return {
        category: {
            chart.title: ["Margin", [*chart[1:]]] for chart in found if known is None or set(chart[1:]) <= set(known)
        }
        for category, found in charts(temperature, k, exact).items()
    }


def with_whole_bands(metrics: Mapping[str, float]) -> dict[str, float]:
    """Without bands whose value is undefined at this step: value and band need the same steps."""
    lone = {
        metric.tag
        for value, bounds in _banded()
        if not math.isfinite(metrics.get(value.tag, math.nan))
        for metric in bounds
    }
    return {tag: value for tag, value in metrics.items() if tag not in lone}


def _banded() -> list[tuple[Metric, Bounds]]:
    """Every number that has a band of noise."""
    levels = ((tags.UNIT, tags.UNIT_NOISE), (tags.PROBLEM, tags.PROBLEM_NOISE))
    return [(getattr(level, name), getattr(noise, name)) for level, noise in levels for name in noise._fields]


def _within(title: str, value: Metric, bounds: Bounds) -> Chart:
    return Chart(title, value.tag, bounds.low.tag, bounds.high.tag)


def _gap(title: str, value: Metric) -> Chart:
    return Chart(title, value.tag, value.tag, value.base)
