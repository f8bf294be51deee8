r"""As LaTeX for a paper: one booktabs table each, plain ASCII, to be \input. Completions are not for a paper."""

from collections.abc import Sequence

from offleash.eval.comparison.result import Comparison
from offleash.eval.report.sanitize import latex_text
from offleash.eval.report.tables import Table, sections, side_words, title


def latex_report(comparison: Comparison, beside: Sequence[Table] = ()) -> str:
    r"""Tables to \input; needs \usepackage{booktabs,textcomp,graphicx}."""
    blocks = [
        f"% {latex_text(title(comparison))}",
        r"% Needs \usepackage[T1]{fontenc} and \usepackage{booktabs,textcomp,graphicx}.",
        *(f"% WARNING: {latex_text(text)}" for text in comparison.warnings),
        *(f"% {latex_text(text)}" for text in (side_words(comparison.base), *comparison.notes)),
    ]
    for number, section in enumerate(sections(comparison)):
        lead = latex_text(section.title)
        blocks += [f"\n% {lead}", *(_table(table, lead, f"{table.name}-{number}") for table in section.tables)]
    lead = latex_text(comparison.policies[-1].side.label)
    blocks += ["\n% Beside the paper"] * bool(beside) + [_table(table, lead, table.name) for table in beside]
    return "\n".join(blocks) + "\n"


def _table(table: Table, lead: str, label: str) -> str:
    columns = "l" + "r" * (len(table.header) - 1)
    note = f" {latex_text(table.note)}" if table.note else ""
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{lead}: {latex_text(table.title)}.{note}}}",
        rf"\label{{tab:offleash-{label}}}",
        r"\resizebox{\ifdim\width>\linewidth \linewidth\else \width\fi}{!}{%",
        rf"\begin{{tabular}}{{{columns}}}",
        r"\toprule",
        _row(table.header),
        r"\midrule",
        *map(_row, table.rows),
        r"\bottomrule",
        r"\end{tabular}}",
        r"\end{table}",
    ]
    return "\n".join(lines)


def _row(cells: tuple[str, ...]) -> str:
    return " & ".join(map(latex_text, cells)) + r" \\"
