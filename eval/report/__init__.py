"""A `Comparison` for people: one set of tables (`tables`), for the terminal, Markdown, LaTeX and HTML; and as JSON.

`FORMATS` is the table of formats by name; each is a function of the comparison, and of tables to stand beside it, that
returns the whole file as text.
"""

from collections.abc import Callable, Sequence

from offleash.eval.comparison.result import Comparison
from offleash.eval.report.latex import latex_report
from offleash.eval.report.markdown import markdown_report
from offleash.eval.report.page import html_report
from offleash.eval.report.record import json_report
from offleash.eval.report.tables import Table

FORMATS: dict[str, Callable[[Comparison, Sequence[Table]], str]] = {
    "json": json_report,
    "markdown": markdown_report,
    "latex": latex_report,
    "html": html_report,
}
