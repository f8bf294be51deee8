"""A comparison for the terminal: the verdict and one table, or everything, in aligned columns; wide tables are split.

The verdict stands first and last: a long report is read from its end.
"""

import re
import textwrap
import unicodedata
from collections.abc import Sequence

from offleash.eval.comparison.result import Comparison
from offleash.eval.console import visible
from offleash.eval.report.brief import brief_table
from offleash.eval.report.tables import Section, Table, short_sections
from offleash.eval.report.words import VERDICTS, side_words, title, verdict_word, verdict_words

_WIDTH = 118
_BOLD, _RED, _GREEN, _YELLOW, _PLAIN = "\x1b[1m", "\x1b[31m", "\x1b[32m", "\x1b[33m", "\x1b[0m"
_VERDICT = re.compile(f"(?:Verdict: )?({'|'.join(map(re.escape, VERDICTS.values()))})", re.IGNORECASE)
_WORD_COLORS = {"shrinks": _RED, "expands": _GREEN}


def brief_report(comparison: Comparison, extra_tables: Sequence[Table] = (), width: int = _WIDTH) -> str:
    """The verdict and one table; of a series a row per policy and the verdict on the last."""
    blocks = [*_opening(comparison, width), text_table(brief_table(comparison), width, titled=False)]
    blocks += [text_table(table, width) for table in extra_tables]
    return "\n\n".join([*blocks, f"{_closing(comparison)} Every table: --full. A page: --html FILE."]) + "\n"


def text_report(comparison: Comparison, extra_tables: Sequence[Table] = (), width: int = _WIDTH) -> str:
    """For a series, the tables of the series and of the last policy; the other formats have every policy."""
    blocks = _opening(comparison, width)
    sides = [comparison.base, comparison.policies[-1].side]
    blocks += [wrapped(text, width) for text in [*map(side_words, sides), *comparison.notes]]
    blocks += [block for section in short_sections(comparison) for block in _section(section, width)]
    blocks += [text_table(table, width) for table in extra_tables]
    return "\n\n".join([*blocks, _closing(comparison)]) + "\n"


def painted(text: str) -> str:
    """A report with colors for the terminal: headings, warnings, and the verdict by what it says."""
    lines = text.split("\n")
    for i, line in enumerate(lines):
        below = lines[i + 1] if i + 1 < len(lines) else ""
        if line.startswith("WARNING: "):
            lines[i] = f"{_YELLOW}{line}{_PLAIN}"
        elif found := _VERDICT.match(line):
            color = _WORD_COLORS.get(found[1].rpartition(" ")[2], "")
            lines[i] = f"{_BOLD}{color}{found[0]}{_PLAIN}{line[found.end() :]}"
        elif i == 0 or (line and below and not below.strip("=-")):
            lines[i] = f"{_BOLD}{line}{_PLAIN}"
    return "\n".join(lines)


def _opening(comparison: Comparison, width: int) -> list[str]:
    warnings = [wrapped(f"WARNING: {text}", width) for text in comparison.warnings]
    return [visible(title(comparison)), *warnings, wrapped(verdict_words(comparison.policies[-1]), width)]


def _closing(comparison: Comparison) -> str:
    last = comparison.policies[-1]
    word = verdict_word(last)
    return f"Verdict: {word.lower() or 'none'} at {visible(last.side.label)}."


def _section(section: Section, width: int) -> list[str]:
    heading = visible(section.title)
    lead = [wrapped(text, width) for text in section.lead]
    return [f"{heading}\n{'=' * _width(heading)}", *lead, *(text_table(table, width) for table in section.tables)]


def text_table(table: Table, width: int, titled: bool = True) -> str:
    rows = [table.header, *table.rows]
    widths = [max(_width(visible(row[c])) for row in rows) for c in range(len(table.header))]
    lines = [visible(table.title)] if titled else []
    for columns in pieces([each + 2 for each in widths], width + 2):
        lines.append("-" * (sum(widths[c] + 2 for c in columns) - 2))
        lines += [_line([row[c] for c in columns], [widths[c] for c in columns]) for row in rows]
    return "\n".join([*lines, *([wrapped(table.note, width, "  ")] if table.note else [])])


def pieces(widths: Sequence[float], width: float) -> list[list[int]]:
    """Groups of columns that fit the width, as few and as equally wide as can be, the first column in each."""
    found = _filled(widths, width)
    for percent in range(99, 0, -1):
        narrower = _filled(widths, width * percent / 100)
        if len(narrower) > len(found):
            break
        found = narrower
    return found


def _filled(widths: Sequence[float], width: float) -> list[list[int]]:
    found: list[list[int]] = [[0]]
    for c in range(1, len(widths)):
        if len(found[-1]) > 1 and sum(widths[i] for i in [*found[-1], c]) > width:
            found.append([0])
        found[-1].append(c)
    return found


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
