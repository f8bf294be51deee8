"""A comparison as one HTML file that needs nothing else: tables, inline SVG figures, samples to browse, light and dark.

The pages are Jinja2 templates. Whatever a template prints is sanitized (`visible`) and escaped; only figures of our own
drawing are markup. A content security policy forbids anything fetched and every script but the page's own, by its hash.
"""

import base64
import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from offleash.eval.browse.compared import compared
from offleash.eval.browse.embed import embedded
from offleash.eval.comparison.result import Comparison, PolicyResult
from offleash.eval.console import visible
from offleash.eval.report.brief import brief_table
from offleash.eval.report.figure_style import inline_svg
from offleash.eval.report.figures import passk_figure, sensitivity_figures, series_figures, support_figure
from offleash.eval.report.numbers import estimate, number, share
from offleash.eval.report.sanitize import one_line
from offleash.eval.report.tables import Section, Table, sections
from offleash.eval.report.words import (
    crossing_cell,
    last_common,
    lead_words,
    moved_words,
    side_words,
    title,
    verdict_words,
)

_TEMPLATES = Path(__file__).parent / "templates"
_WITH_DETAIL = re.compile(r"([-.,%0-9]+) (\[[^\[\]]*\]|\(p [^()]*\))")


def render(template: Path, script: str = "", **values: Any) -> str:
    """The page that `template` makes of `values`; it may extend and import the templates of this folder.

    `script`: JavaScript of our own, without any text of a model, that the page ends with.
    """
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
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    allowed = f"'sha256-{digest}'" if script else "'none'"
    return environment.get_template(template.name).render(values, script=Markup(script), script_source=Markup(allowed))


def html_report(comparison: Comparison, extra_tables: Sequence[Table] = ()) -> str:
    """The page of a comparison. Of a series the last policy is unfolded, the others folded."""
    every = sections(comparison)
    series = [section for section in every if section.result is None]
    last = comparison.policies[-1]
    browser = None
    if comparison.pools:
        steps = {policy.side.label: policy.side.step for policy in comparison.policies}
        browser = embedded(compared(comparison.pools, steps), 'browseTasks(document.getElementById("browser"));')
    return render(
        _TEMPLATES / "compare.html",
        script=browser.script if browser else "",
        browser=None if browser is None else {"style": Markup(browser.style), "data": Markup(browser.data)},
        command="offleash compare",
        title=title(comparison),
        warnings=comparison.warnings,
        verdict=verdict_words(last).partition(":"),
        word=(last.leash.units.word if last.leash is not None else None) or "none",
        tiles=_tiles(last),
        notes=[side_words(comparison.base), side_words(last.side), *comparison.notes],
        brief=brief_table(comparison),
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
        "line": verdict_words(result),
        "support": tables("support", "tasks-", "domains-"),
        "passk_figure": passk_figure(result, [other for other in comparison.policies if other is not result]),
        "crossing": lead_words(result.overall.curves),
        "passk": tables("pass-at-k"),
        "samples": tables("samples"),
        "more": tables("leash", "perplexity", "importance"),
        "sensitivity_figures": sensitivity_figures(result) if result.sensitivity else [],
        "sensitivity": tables("sensitivity"),
        "moved": [
            (name.capitalize(), moved_words(name, moved, len(moved.examples)), moved.examples)
            for name, moved in (("lost", result.lost), ("gained", result.gained))
        ],
    }


def _tiles(result: PolicyResult) -> list[tuple[str, str, str]]:
    """(name, value, detail) of the numbers at the top; the metrics beside what noise alone would give."""
    units, curves = result.overall.units.any_hit, result.overall.curves
    last = last_common(curves)
    passes = [("pass@1", 0), (f"pass@{curves.ks[last]:,}", last)]
    tiles = [
        (name, f"{share(curves.base[i].value)} → {share(curves.policy[i].value)}", "base → policy")
        for name, i in passes
    ]
    for metric in ("srr", "ndr", "nscr"):
        value, interval = share(units.estimates[metric].value), estimate(units.estimates[metric]).partition(" ")[2]
        tiles.append((metric.upper(), value, f"{interval} · noise {share(units.noise_metrics[metric])}"))
    if result.leash is not None:
        line = result.leash.units.against.line
        tiles.append(("NSCR of the reweighted base", share(line.value), estimate(line).partition(" ")[2]))
    more = f"k = 1 to {curves.ks[last]:,}"
    if curves.state == "crosses":
        more = " · ".join(f"{lead.leader} from {estimate(lead.since, number)}" for lead in curves.leads[1:])
    return [*tiles, ("crossing k", crossing_cell(curves), more)]


def _split_detail(cell: str) -> tuple[str, str]:
    """A number, and the interval or p-value beside it, which the page shows below it in small print."""
    found = _WITH_DETAIL.fullmatch(cell)
    return (found[1], found[2]) if found else (cell, "")
