"""A comparison for the terminal: aligned columns; the series first, then the last policy; wide tables are split."""

import textwrap
import unicodedata
from collections.abc import Sequence

from offleash.eval.comparison.result import Comparison
from offleash.eval.console import visible
from offleash.eval.report.tables import Section, Table, sections, side_words, title

_WIDTH = 118


def text_report(comparison: Comparison, extra_tables: Sequence[Table] = (), width: int = _WIDTH) -> str:
    """For a series, the tables of the series and of the last policy; the other formats have every policy."""
    blocks = [visible(title(comparison)), *(f"WARNING: {visible(text)}" for text in comparison.warnings)]
    sides = [comparison.base, comparison.policies[-1].side]
    blocks += [wrapped(text, width) for text in [*map(side_words, sides), *comparison.notes]]
    every = sections(comparison)
    shown = every if len(comparison.policies) == 1 else [every[0], every[-1]]
    blocks += [block for section in shown for block in _section(section, width)]
    return "\n\n".join([*blocks, *(text_table(table, width) for table in extra_tables)]) + "\n"


def _section(section: Section, width: int) -> list[str]:
    heading = visible(section.title)
    lead = [wrapped(text, width) for text in section.lead]
    return [f"{heading}\n{'=' * _width(heading)}", *lead, *(text_table(table, width) for table in section.tables)]


def text_table(table: Table, width: int) -> str:
    rows = [table.header, *table.rows]
    widths = [max(_width(visible(row[c])) for row in rows) for c in range(len(table.header))]
    lines = [visible(table.title)]
    for columns in _pieces(widths, width):
        lines.append("-" * (sum(widths[c] + 2 for c in columns) - 2))
        lines += [_line([row[c] for c in columns], [widths[c] for c in columns]) for row in rows]
    return "\n".join([*lines, *([wrapped(table.note, width, "  ")] if table.note else [])])


def _pieces(widths: Sequence[int], width: int) -> list[list[int]]:
    """Groups of columns that fit the width, the first column repeated in each."""
    pieces: list[list[int]] = [[0]]
    for c in range(1, len(widths)):
        if len(pieces[-1]) > 1 and sum(widths[i] + 2 for i in [*pieces[-1], c]) - 2 > width:
            pieces.append([0])
        pieces[-1].append(c)
    return pieces


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    cells = []
    for c, (cell, width) in enumerate(zip(row, widths, strict=True)):
        text = visible(cell)
        gap = " " * (width - _width(text))
        cells.append(text + gap if c == 0 else gap + text)
    return "  ".join(cells).rstrip()


def _width(text: str) -> int:
    """Columns on a terminal: wide characters take two, combining characters none."""
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def wrapped(text: str, width: int, indent: str = "") -> str:
    wrapper = textwrap.TextWrapper(width, indent, indent, break_long_words=False, break_on_hyphens=False)
    return wrapper.fill(" ".join(visible(text).split()))
