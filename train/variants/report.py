"""A sweep's report for people: for the terminal, as Markdown, and as one HTML page with its figures inside."""

import textwrap

from offleash.eval.report.figure_style import inline_svg
from offleash.eval.report.markup import markdown_table
from offleash.eval.report.page import CONTENT_POLICY, html_table
from offleash.eval.report.sanitize import html_text, markdown_text, visible
from offleash.eval.report.style import STYLE
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
    figures = (
        (
            pareto_figure(sweep, analysis),
            "pass@1 against NSCR, means over seeds with intervals; long ones leave the picture. Line: the front.",
        ),
        (tradeoff_figure(sweep, analysis), "The same against what else support and diversity are measured by."),
    )
    body = [
        f"<h1>{html_text(TITLE)}</h1>",
        *(f'<p class="warning" role="alert">{html_text(text)}</p>' for text in _warnings(sweep, analysis)),
        *(f"<p>{html_text(text)}</p>" for text in summary(analysis)),
        *(f"<figure>{inline_svg(f)}<figcaption>{html_text(text)}</figcaption></figure>" for f, text in figures),
        *(html_table(table) for table in tables(sweep, analysis)),
        "<h2>What the words mean</h2>",
        f'<ul class="sides">{"".join(f"<li>{html_text(text)}</li>" for text in notes(sweep, analysis))}</ul>',
    ]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{CONTENT_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html_text(TITLE)} - Offleash</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(body)
        + "\n</main>\n<footer>Made by <code>offleash variants</code>. Definitions: The Invisible Leash, "
        "arXiv 2507.14843.</footer>\n</body>\n</html>\n"
    )


def _warnings(sweep: Sweep, analysis: Analysis) -> list[str]:
    missing = [f"{name}: no numbers, {why}" for name, why in sweep.missing.items()]
    return [*missing, *analysis.warnings]


def _wrapped(text: str, width: int) -> str:
    return textwrap.fill(visible(text), width, break_long_words=False, break_on_hyphens=False)
