"""How a run is drawn: TensorBoard's tab "Custom Scalars", and figures for every tracker.

Every chart of the tab is a Margin chart: a line and a band. TensorBoard does not smooth these (others by .6). One line
per run is the policy's, so that a color is a run; the band is what it is to be read against: noise, an interval, or the
base. A second, flat line is what noise alone is expected to show.

TensorBoard's default "ignore outliers" drops the outer 5 % of all numbers in a chart from its axis, of few points the
first or the last. The second line has the first one's values as its band, which has no width: every value is there
three times, and up to 6 measured steps none is dropped. Of more, those next to the outermost set the axis, with room.

TensorBoard refuses a Margin chart whose three tags were not logged at the same steps: see `with_whole_bands`.

Figures: TensorBoard keeps ten images of a tag, chosen at random but for the last. So every image shows all steps up to
its own: nothing is lost if one is dropped. It scales images to 215 pixels of height ("Time Series") or 350 of width
("Images"), without interpolation: these are exactly twice that, on white also where the page is dark.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.types_pb2 import DT_STRING
from tensorboard.plugins.custom_scalar import layout_pb2, metadata

from offleash.callbacks import tags
from offleash.callbacks.tags import Band, Bounds, Metric
from offleash.eval.report.figure_style import KEPT, LINES, PAPER, styled
from offleash.eval.report.sanitize import one_line
from offleash.eval.stats.support import METRICS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Curve = Mapping[int, float]
"""k -> pass@k."""
CARD, PAGE = (3.5, 2.15), (5.6, 4.2)
"""Inches: of a card in a tracker, where text is small, and of a page."""
MOST_CURVES = 6


class Series(NamedTuple):
    """Tags: of the line, and of the two ends of its band."""

    value: str
    lower: str
    upper: str


class Chart(NamedTuple):
    title: str
    series: tuple[Series, ...]

    @property
    def tags(self) -> set[str]:
        return {tag for one in self.series for tag in one}


def charts(temperature: float, k: int, exact: bool) -> dict[str, list[Chart]]:
    """By category; `k` is the largest budget of pass@k."""
    unit, noise, line = tags.UNIT, tags.UNIT_NOISE, tags.LEASH
    problem, problem_noise = tags.PROBLEM, tags.PROBLEM_NOISE
    intervals, pass_at_1 = tags.INTERVAL, tags.pass_at(1)
    above = "NSCR less that of the KL-optimal reweighting of the base at this pass@1"
    found = {
        "Against noise. Band: a second sample of the base, 19 times in 20. Outside it, something changed": [
            _chart("pass@1", pass_at_1, tags.PASS_AT_1_NOISE, pass_at_1.base),
            _against("units lost", unit.shrunk, noise.shrunk),
            _against("units gained", unit.expanded, noise.expanded),
            _against("NSCR, (gained - lost) / union", unit.nscr, noise.nscr),
            _against("SRR, fraction of base units retained", unit.srr, noise.srr),
            _against("NDR, fraction of policy units that are new", unit.ndr, noise.ndr),
        ],
        "Against the base. Band: the gap to the base": [
            _gap(f"pass@{k}", tags.pass_at(k)),
            _gap("answer entropy (nats)", tags.ANSWER_ENTROPY),
            _gap("token entropy (nats)", tags.token_entropy(temperature)),
        ],
        "95 % intervals, over problems. Flat line: noise alone": [
            _chart("pass@1", pass_at_1, intervals.pass_at_1, pass_at_1.base),
            _chart("units lost", unit.shrunk, intervals.shrunk, noise.shrunk.expected.tag),
            _chart("units gained", unit.expanded, intervals.expanded, noise.expanded.expected.tag),
            _chart("NSCR", unit.nscr, Bounds(line.policy_nscr_low, line.policy_nscr_high), noise.nscr.expected.tag),
            _chart("SRR", unit.srr, intervals.srr, noise.srr.expected.tag),
            _chart("NDR", unit.ndr, intervals.ndr, noise.ndr.expected.tag),
            _chart(above, line.above, Bounds(line.above_low, line.above_high)),
        ],
        "Units hit 5 times or more, against noise": [
            _against(f"{name.upper()} at 5 hits or more", getattr(unit, rate), getattr(noise, rate))
            for name in METRICS
            for rate in [f"{name}_hits5"]
        ],
        "Problems, against noise": [
            _against("problems lost", problem.shrunk, problem_noise.shrunk),
            _against("problems gained", problem.expanded, problem_noise.expanded),
            *(_against(name.upper(), getattr(problem, name), getattr(problem_noise, name)) for name in METRICS),
        ],
    }  # fmt: skip
    if exact:
        found["Exact, by enumeration. Band: up to the KL-optimal reweighting of the base at this pass@1"] = [
            Chart(f"NSCR({eps:g})", (Series(nscr.tag, nscr.tag, tags.at_floor(tags.LEASH_NSCR, eps).tag),))
            for eps in (1e-2, 1e-3, 1e-4)
            for nscr in [tags.at_floor(tags.EXACT_NSCR, eps)]
        ]
    return found


def custom_layout(
    temperature: float,
    k: int,
    exact: bool = False,
    unknown: Collection[str] = (),
    known: Collection[str] | None = None,
) -> Summary:
    """The layout as an event's summary; `known`: the tags that were logged, if not all are; `unknown`: those that will
    not be."""
    categories = [
        layout_pb2.Category(
            title=title,
            # TensorBoard shows the last one first.
            chart=[
                _margin_chart(chart)
                for chart in reversed(found)
                if (known is None or chart.tags <= set(known)) and chart.tags.isdisjoint(unknown)
            ],
        )
        for title, found in charts(temperature, k, exact).items()
    ]
    layout = layout_pb2.Layout(category=[category for category in categories if category.chart])
    tensor = TensorProto(dtype=DT_STRING, string_val=[layout.SerializeToString()])
    form = metadata.create_summary_metadata()
    return Summary(value=[Summary.Value(tag=metadata.CONFIG_SUMMARY_TAG, tensor=tensor, metadata=form)])


def lay_out(writer: Any, layout: Summary) -> None:
    """To a SummaryWriter, whose own method knows charts of one series only."""
    writer._get_file_writer().add_summary(layout)


def with_whole_bands(metrics: Mapping[str, float]) -> dict[str, float]:
    """Without bands whose value is undefined at this step: value and band need the same steps."""
    levels = ((tags.UNIT, tags.UNIT_NOISE), (tags.PROBLEM, tags.PROBLEM_NOISE))
    lone = {
        metric.tag
        for level, noise in levels
        for name, band in noise._asdict().items()
        if not math.isfinite(metrics.get(getattr(level, name).tag, math.nan))
        for metric in band
    }
    return {tag: value for tag, value in metrics.items() if tag not in lone}


def _margin_chart(chart: Chart) -> layout_pb2.Chart:
    series = [layout_pb2.MarginChartContent.Series(**one._asdict()) for one in chart.series]
    return layout_pb2.Chart(title=chart.title, margin=layout_pb2.MarginChartContent(series=series))


def _chart(title: str, value: Metric, bounds: Bounds | Band, flat: str | None = None) -> Chart:
    band = Series(value.tag, bounds.low.tag, bounds.high.tag)
    return Chart(title, (band,) if flat is None else (band, Series(flat, value.tag, value.tag)))


def _against(title: str, value: Metric, noise: Band) -> Chart:
    return _chart(title, value, noise, noise.expected.tag)


def _gap(title: str, value: Metric) -> Chart:
    return Chart(title, (Series(value.tag, value.tag, value.base),))


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
