"""A sweep's report for people: for the terminal, as Markdown, and as one HTML page with its figures inside."""

import textwrap
from pathlib import Path

from offleash.eval.report.markup import markdown_table
from offleash.eval.report.page import render
from offleash.eval.report.sanitize import markdown_text, visible
from offleash.eval.report.text import text_table
from offleash.train.variants.analysis import Analysis
from offleash.train.variants.figures import pareto_figure, tradeoff_figure
from offleash.train.variants.results import Sweep
from offleash.train.variants.tables import notes, summary, tables

TITLE = "Exploration variants against plain and controls"


def text_report(sweep: Sweep, analysis: Analysis, width: int = 118) -> str:
    blocks = [TITLE, *(_wrapped(f"WARNING: {text}", width) for text in _warnings(sweep, analysis))]
    blocks += [_wrapped(text, width) for text in summary(analysis)]
    blocks += [text_table(table, width) for table in tables(sweep, analysis)]
    return "\n\n".join([*blocks, "\n".join(_wrapped(text, width) for text in notes(sweep, analysis))]) + "\n"


def markdown_report(sweep: Sweep, analysis: Analysis) -> str:
    blocks = [f"# {TITLE}", *(f"> **Warning:** {markdown_text(text)}" for text in _warnings(sweep, analysis))]
    blocks += [markdown_text(text) for text in summary(analysis)]
    blocks.append("![pass@1 against NSCR](pareto.svg)")
    for table in tables(sweep, analysis):
        blocks += markdown_table(table)
    blocks.append("\n".join(f"- {markdown_text(text)}" for text in notes(sweep, analysis)))
    return "\n\n".join(blocks) + "\n"


def html_report(sweep: Sweep, analysis: Analysis) -> str:
    return render(
        Path(__file__).parent / "templates" / "variants.html",
        command="offleash variants",
        title=TITLE,
        warnings=_warnings(sweep, analysis),
        summary=summary(analysis),
        pareto=pareto_figure(sweep, analysis),
        tradeoffs=tradeoff_figure(sweep, analysis),
        tables=tables(sweep, analysis),
        notes=notes(sweep, analysis),
    )


def _warnings(sweep: Sweep, analysis: Analysis) -> list[str]:
    missing = [f"{name}: no numbers, {why}" for name, why in sweep.missing.items()]
    return [*missing, *analysis.warnings]


def _wrapped(text: str, width: int) -> str:
    return textwrap.fill(visible(text), width, break_long_words=False, break_on_hyphens=False)
