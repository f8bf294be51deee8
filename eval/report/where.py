"""Where support is lost, as tables and one figure."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from offleash.eval.report.figure_style import BASE, KEPT, styled
from offleash.eval.report.markup import markdown_table
from offleash.eval.report.numbers import count, number, share
from offleash.eval.report.record import json_text
from offleash.eval.report.tables import Table
from offleash.eval.report.text import text_table
from offleash.eval.scoring.positions import CLASSES, Group, Where

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SIDES = ("lost", "kept")


def text_report(found: Where, width: int = 118) -> str:
    return "\n\n".join(text_table(table, width) for table in where_tables(found))


def markdown_report(found: Where) -> str:
    return "\n\n".join("\n".join([f"**{table.title}**", "", *markdown_table(table)]) for table in where_tables(found))


def json_report(found: Where, base: str, policies: Sequence[str]) -> str:
    """In pairs of numbers the base's is first; what is not defined is null."""
    groups = {name: _record(getattr(found, name)) for name in _SIDES}
    sides = {"base": base, "policies": list(policies)}
    return json_text({"format": 2, **sides, "eps": found.eps, "classes": list(CLASSES), **groups})


def where_tables(found: Where) -> list[Table]:
    """The shift by kind of position, by token index, and what is still executable."""
    lost, kept = found.lost, found.kept
    rows = [
        (name, number(lost.classes[c]), share(lost.shares[c]), number(kept.classes[c]))
        for c, name in enumerate(CLASSES)
    ]
    rows += [
        ("other texts of the same answer", number(lost.rewritten), "", number(kept.rewritten)),
        ("ln policy/base", number(lost.total), "", number(kept.total)),
        ("units", count(lost.units), "", count(kept.units)),
    ]
    forced = [
        ("first branching point: this answer", lost.after_first, kept.after_first),
        ("first branching point: any correct answer", lost.any_after_first, kept.any_after_first),
        ("last branching point: this answer", lost.after_last, kept.after_last),
    ]
    depths = [
        (str(d + 1), number(lost.depth_d[d]), number(kept.depth_d[d]))
        for d in range(len(lost.depth_d))
        if not (math.isnan(lost.depth_d[d]) and math.isnan(kept.depth_d[d]))
    ]
    return [
        Table(
            "where",
            f"Shift of log-probability by position (nats, mean over units of base probability {found.eps:g} or more)",
            ("", "lost", "share", "kept"),
            tuple(rows),
            "A branching point is where a text of another correct answer shares everything before and differs. Texts "
            "of an answer are weighted as the base writes them; what other texts of it recover is a row of its own.",
        ),
        Table(
            "executable",
            "Still executable: the probability to complete, the answer's text forced up to and including its",
            ("", "lost: base", "lost: policy", "kept: base", "kept: policy"),
            tuple((name, *(share(value) for pair in pairs for value in pair)) for name, *pairs in forced),
            f"Of units with a branching point: {count(lost.branching)} lost, {count(kept.branching)} kept.",
        ),
        Table("token", "Shift by token index (nats)", ("token", "lost", "kept"), tuple(depths)),
    ]


@styled()
def where_figure(found: Where) -> "Figure":
    """Left by kind of position, right by token index; lost and kept units."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.6, 3.2))
    left, right = figure.subplots(1, 2, gridspec_kw={"width_ratios": [1, 1.1]})
    for side, color, offset in (("lost", BASE, -0.2), ("kept", KEPT, 0.2)):
        group: Group = getattr(found, side)
        label = f"{side} ({group.units:,} units)"
        places = [c + offset for c in range(len(CLASSES))]
        left.barh(places, [0 if math.isnan(v) else v for v in group.classes], 0.38, color=color, label=label)
        known = [(d + 1, v) for d, v in enumerate(group.depth_d) if not math.isnan(v)]
        right.plot([d for d, _ in known], [v for _, v in known], color=color, marker="o", label=label)
    left.set_yticks(range(len(CLASSES)), CLASSES)
    left.invert_yaxis()
    left.set(xlabel="ln policy/base (nats)", title="by kind of position")
    right.set(xlabel="token", title="by token index")
    right.legend(loc="best")
    figure.set_label(f"Where log-probability moved, of units of base probability {found.eps:g} or more, lost and kept.")
    return figure


def _record(group: Group) -> dict[str, Any]:
    return {**group._asdict(), "shares": group.shares, "depth_d": group.depth_d.tolist()}
