"""A comparison as one HTML file that needs nothing else: tables, inline SVG figures, light and dark, no scripts.

The pages are Jinja2 templates. Whatever a template prints is sanitized (`visible`) and escaped; only figures of our own
drawing are markup. A content security policy forbids scripts and anything fetched.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from offleash.eval.comparison.result import Comparison, PolicyResult
from offleash.eval.console import visible
from offleash.eval.report.figure_style import inline_svg
from offleash.eval.report.figures import passk_figure, sensitivity_figures, series_figures, support_figure
from offleash.eval.report.numbers import DASH, estimate, number, p_words, share
from offleash.eval.report.sanitize import one_line
from offleash.eval.report.tables import (
    Section,
    Table,
    crossing_cell,
    last_common,
    lead_words,
    moved_words,
    sections,
    side_words,
    title,
)

_TEMPLATES = Path(__file__).parent / "templates"
_WITH_DETAIL = re.compile(r"([-.,%0-9]+) (\[[^\[\]]*\]|\(p [^()]*\))")


def render(template: Path, **values: Any) -> str:
    """The page that `template` makes of `values`; it may extend and import the templates of this folder."""
    environment = Environment(
        loader=FileSystemLoader([template.parent, _TEMPLATES]),
        autoescape=True,
        finalize=lambda value: visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "one_line": one_line,
        "split_detail": _split_detail,
        "svg": lambda figure: Markup(inline_svg(figure)),
    }
    return environment.get_template(template.name).render(values)


def html_report(comparison: Comparison, extra_tables: Sequence[Table] = ()) -> str:
    """The page of a comparison. Of a series the last policy is unfolded, the others folded."""
    every = sections(comparison)
    series = [section for section in every if section.result is None]
    return render(
        _TEMPLATES / "compare.html",
        command="offleash compare",
        title=title(comparison),
        warnings=comparison.warnings,
        notes=[side_words(comparison.base), side_words(comparison.policies[-1].side), *comparison.notes],
        series=series,
        series_figures=series_figures(comparison) if series else [],
        policies=[_policy(comparison, section) for section in every if section.result is not None],
        extra_tables=extra_tables,
    )


def _policy(comparison: Comparison, section: Section) -> dict[str, Any]:
    result = section.result
    assert result is not None

    def tables(*names: str) -> list[Table]:
        return [table for table in section.tables if table.name.startswith(names)]

    return {
        "section": section,
        "tiles": _tiles(result),
        "support_figure": support_figure(result),
        "support": tables("support", "leash", "tasks-", "domains-"),
        "passk_figure": passk_figure(result, [other for other in comparison.policies if other is not result]),
        "crossing": lead_words(result.overall.curves),
        "passk": tables("pass-at-k"),
        "samples": tables("samples", "perplexity"),
        "sensitivity_figures": sensitivity_figures(result) if result.sensitivity else [],
        "sensitivity": tables("sensitivity"),
        "moved": [
            (name.capitalize(), moved_words(name, moved), moved.examples)
            for name, moved in (("lost", result.lost), ("gained", result.gained))
        ],
    }


def _tiles(result: PolicyResult) -> list[tuple[str, str, str]]:
    """(name, value, detail) of the numbers at the top."""
    units, curves = result.overall.units.any_hit, result.overall.curves
    last = last_common(curves)
    passes = [("pass@1", 0), (f"pass@{curves.ks[last]:,}", last)]
    tiles = [
        (name, f"{share(curves.base[i].value)} → {share(curves.policy[i].value)}", "base → policy")
        for name, i in passes
    ]
    for metric, noise in (("srr", units.shrunk), ("ndr", units.expanded), ("nscr", None)):
        value = units.estimates[metric]
        interval = estimate(value).partition(" ")[2]
        more = f"{interval} · {p_words(noise.p_strength)}" if noise is not None else interval
        tiles.append((metric.upper(), share(value.value), more))
    if result.leash is not None:
        line = result.leash.units
        tiles.append(("verdict", line.word or DASH, f"reweighting has NSCR {estimate(line.against.line)}"))
    more = f"k = 1 to {curves.ks[last]:,}"
    if curves.state == "crosses":
        more = " · ".join(f"{lead.leader} from {estimate(lead.since, number)}" for lead in curves.leads[1:])
    return [*tiles, ("crossing k", crossing_cell(curves), more)]


def _split_detail(cell: str) -> tuple[str, str]:
    """A number, and the interval or p-value beside it, which the page shows below it in small print."""
    found = _WITH_DETAIL.fullmatch(cell)
    return (found[1], found[2]) if found else (cell, "")
