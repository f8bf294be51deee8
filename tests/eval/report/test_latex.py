"""LaTeX tables fit a page of two columns at 8 pt, by LaTeX's own account."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from offleash.eval.comparison.result import Comparison
from offleash.eval.report.latex import COLUMN, PAGE, latex_report, latex_table
from offleash.eval.report.tables import Table

DOCUMENT = r"""\documentclass[twocolumn]{article}
\usepackage[T1]{fontenc}
\usepackage{booktabs,textcomp}
\setlength{\textwidth}{455pt}
\setlength{\columnsep}{17pt}
\begin{document}
\typeout{widths \the\columnwidth\space \the\textwidth}
\input{report.tex}
\end{document}
"""


def compiled(folder: Path, report: str) -> str:
    """The log of pdflatex, which must not have failed."""
    (folder / "report.tex").write_text(report)
    (folder / "page.tex").write_text(DOCUMENT)
    line = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "-draftmode", "page.tex"]
    done = subprocess.run(line, cwd=folder, capture_output=True, text=True, errors="replace", timeout=120)
    assert done.returncode == 0, done.stdout[-2000:]
    return (folder / "page.log").read_text(errors="replace")


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no pdflatex (apt install texlive-latex-recommended)")
def test_no_table_is_wider_than_its_column_or_the_page(series: Comparison, pair: Comparison, tmp_path: Path) -> None:
    widest = Table("w", "W", ("", *[f"NSCR of column {i}" for i in range(9)]), (("x" * 60, *["-.107 [-.2, -.1]"] * 9),))
    for comparison in (series, pair):
        log = compiled(tmp_path, latex_report(comparison, [widest]))
        assert "Overfull" not in log
        found = re.search(r"widths ([\d.]+)pt ([\d.]+)pt", log)
        assert found is not None
        assert [float(width) for width in found.groups()] == [COLUMN, PAGE]


def test_tables_are_set_in_8_pt_and_never_scaled(series: Comparison) -> None:
    text = latex_report(series)
    assert text.count(r"\fontsize{8}") == text.count(r"\begin{table") == text.count(r"\end{table") > 5
    assert "resizebox" not in text


@pytest.mark.parametrize(("columns", "name", "tabulars"), [(1, "table", 1), (4, "table*", 1), (8, "table*", 2)])
def test_a_table_takes_a_column_the_page_or_several_pieces(columns: int, name: str, tabulars: int) -> None:
    table = Table("t", "T", ("", *["NSCR"] * columns), (("units", *["-.107 [-.200, -.100]"] * columns),))
    text = latex_table(table, "", "label")
    assert text.startswith(rf"\begin{{{name}}}")
    assert text.count(r"\begin{tabular}") == tabulars
    assert text.count("units &") == tabulars  # the first column is repeated
    assert text.count("NSCR") == columns
