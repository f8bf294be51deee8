r"""A comparison as Markdown and as LaTeX.

Markdown: tables that GitHub renders, and completions in indented blocks, which no text can close. LaTeX: booktabs
tables in plain ASCII, to be \input in a paper, without the completions.
"""

from collections.abc import Sequence

from offleash.eval.comparison.result import Comparison, Example
from offleash.eval.report.sanitize import latex_text, markdown_code, markdown_text, one_line
from offleash.eval.report.tables import Table, sections, side_words, title


def markdown_report(comparison: Comparison, extra_tables: Sequence[Table] = ()) -> str:
    blocks = [f"# {markdown_text(title(comparison))}"]
    blocks += [f"> **Warning:** {markdown_text(text)}" for text in comparison.warnings]
    words = [side_words(comparison.base), *(side_words(result.side) for result in comparison.policies)]
    blocks.append("\n".join(f"- {markdown_text(text)}" for text in [*words, *comparison.notes]))
    for section in sections(comparison):
        blocks.append(f"## {markdown_text(section.title)}")
        blocks += [markdown_text(text) for text in section.lead]
        for table in section.tables:
            blocks += markdown_table(table)
        if (result := section.result) is not None:
            blocks += [block for example in result.lost.examples for block in _example("Lost", example)]
            blocks += [block for example in result.gained.examples for block in _example("Gained", example)]
    blocks += ["## Comparison with the paper"] * bool(extra_tables) + [
        block for table in extra_tables for block in markdown_table(table)
    ]
    return "\n\n".join(blocks) + "\n"


def markdown_table(table: Table) -> list[str]:
    rows = [table.header, ("---", *("---:" for _ in table.header[1:]))]
    lines = ["| " + " | ".join(map(markdown_text, rows[0])) + " |", "| " + " | ".join(rows[1]) + " |"]
    lines += ["| " + " | ".join(map(markdown_text, row)) + " |" for row in table.rows]
    note = [markdown_text(table.note)] if table.note else []
    return [f"### {markdown_text(table.title)}", "\n".join(lines), *note]


def _example(name: str, example: Example) -> list[str]:
    change = example.change
    heading = f"{name}: {change.problem_id}, {change.answer}"
    texts = [
        ("Prompt", example.prompt),
        (f"Base ({change.base_hits}/{change.base_n} hits)", example.base_text),
        (f"Policy ({change.policy_hits}/{change.policy_n} hits)", example.policy_text),
    ]
    blocks = [f"#### {markdown_text(one_line(heading, 120))}"]
    for label, text in texts:
        blocks += [f"{markdown_text(label)}:", markdown_code("(no text stored)" if text is None else text)]
    return blocks


def latex_report(comparison: Comparison, extra_tables: Sequence[Table] = ()) -> str:
    r"""Tables to \input; needs \usepackage{booktabs,textcomp,graphicx}."""
    blocks = [
        f"% {latex_text(title(comparison))}",
        r"% Needs \usepackage[T1]{fontenc} and \usepackage{booktabs,textcomp,graphicx}.",
        *(f"% WARNING: {latex_text(text)}" for text in comparison.warnings),
        *(f"% {latex_text(text)}" for text in (side_words(comparison.base), *comparison.notes)),
    ]
    for number, section in enumerate(sections(comparison)):
        lead = latex_text(section.title)
        blocks += [f"\n% {lead}", *(_latex_table(table, lead, f"{table.name}-{number}") for table in section.tables)]
    lead = latex_text(comparison.policies[-1].side.label)
    blocks += ["\n% Comparison with the paper"] * bool(extra_tables) + [
        _latex_table(table, lead, table.name) for table in extra_tables
    ]
    return "\n".join(blocks) + "\n"


def _latex_table(table: Table, lead: str, label: str) -> str:
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
        _latex_row(table.header),
        r"\midrule",
        *map(_latex_row, table.rows),
        r"\bottomrule",
        r"\end{tabular}}",
        r"\end{table}",
    ]
    return "\n".join(lines)


def _latex_row(cells: tuple[str, ...]) -> str:
    return " & ".join(map(latex_text, cells)) + r" \\"
