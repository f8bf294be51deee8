r"""A comparison as LaTeX: booktabs tables in plain ASCII, to be \input in a paper, without the completions.

Every table is set in 8 pt and fits a page of two columns: `table` if it fits one of them, `table*` across both
otherwise; what is wider still is split into pieces below each other, which repeat the first column. Widths are those of
the narrowest layout in use (ACL's) in Computer Modern, the widest font.
"""

from collections.abc import Sequence

from offleash.eval.comparison.result import Comparison
from offleash.eval.report.sanitize import latex_text, one_line
from offleash.eval.report.tables import Table, short_sections
from offleash.eval.report.text import pieces
from offleash.eval.report.words import side_words, title

COLUMN, PAGE = 219.0, 455.0
"""Widths in points: of a column (7.7 cm), of a page (16 cm)."""
_SEPARATION = 3.0
"""Points on each side of a table's column."""
_CELL_LIMIT = 40
"""Characters of a cell: names of problems and answers are longer."""
_WIDTHS = {
    **dict.fromkeys("ijl.,:;!|'[]", 2.5),
    **dict.fromkeys("frst()- ", 3.5),
    **dict.fromkeys("0123456789aceghknopquvxyz/*?$_–", 4.4),
    **dict.fromkeys("bdhknpquvxy", 4.8),
    **dict.fromkeys("mw%&@MW", 8.4),
}
"""Points that a character takes in 8 pt, rounded up; any other takes as much as a minus sign or a capital."""
_WIDEST = 6.8


def latex_report(comparison: Comparison, extra_tables: Sequence[Table] = ()) -> str:
    r"""The tables of the series, if it is one, and of its last policy; needs \usepackage{booktabs,textcomp}."""
    blocks = [
        f"% {latex_text(title(comparison))}",
        r"% Needs \usepackage[T1]{fontenc} and \usepackage{booktabs,textcomp}.",
        *(f"% WARNING: {latex_text(text)}" for text in comparison.warnings),
        *(f"% {latex_text(text)}" for text in (side_words(comparison.base), *comparison.notes)),
    ]
    for number, section in enumerate(short_sections(comparison)):
        lead = f"{latex_text(section.title)}: " * (section.result is not None)
        blocks.append(f"\n% {latex_text(section.title)}")
        blocks += [latex_table(table, lead, f"{table.name}-{number}") for table in section.tables]
    lead = f"{latex_text(comparison.policies[-1].side.label)}: "
    blocks += ["\n% Comparison with the paper"] * bool(extra_tables) + [
        latex_table(table, lead, table.name) for table in extra_tables
    ]
    return "\n".join(blocks) + "\n"


def latex_table(table: Table, lead: str, label: str) -> str:
    """`lead` is LaTeX: it opens the caption."""
    rows = [tuple(one_line(cell, _CELL_LIMIT) for cell in row) for row in (table.header, *table.rows)]
    widths = [max(_width(row[c]) for row in rows) + 2 * _SEPARATION for c in range(len(table.header))]
    float_name = "table" if sum(widths) <= COLUMN else "table*"
    note = f" {latex_text(table.note)}" if table.note else ""
    tabulars = [_tabular([[row[c] for c in columns] for row in rows]) for columns in pieces(widths, PAGE)]
    return "\n".join(
        [
            rf"\begin{{{float_name}}}",
            r"\centering",
            r"\fontsize{8}{9.5}\selectfont",
            rf"\setlength{{\tabcolsep}}{{{_SEPARATION:g}pt}}",
            rf"\caption{{{lead}{latex_text(table.title)}.{note}}}",
            rf"\label{{tab:offleash-{label}}}",
            "\n\n\\medskip\n".join(tabulars),
            rf"\end{{{float_name}}}",
        ]
    )


def _tabular(rows: Sequence[Sequence[str]]) -> str:
    lines = [rf"\begin{{tabular}}{{l{'r' * (len(rows[0]) - 1)}}}", r"\toprule", _row(rows[0]), r"\midrule"]
    return "\n".join([*lines, *map(_row, rows[1:]), r"\bottomrule", r"\end{tabular}"])


def _row(cells: Sequence[str]) -> str:
    return " & ".join(map(latex_text, cells)) + r" \\"


def _width(text: str) -> float:
    """Points of a cell, no less than LaTeX needs. A hyphen before a digit is set as a minus sign."""
    minus = (_WIDEST - _WIDTHS["-"]) * text.count("-")
    return minus + sum(_WIDTHS.get(character, _WIDEST) for character in text)
