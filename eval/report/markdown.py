"""As Markdown: tables that GitHub shows, and completions in indented blocks, which no text can end."""

from collections.abc import Sequence

from offleash.eval.comparison.result import Comparison, Example, PolicyResult
from offleash.eval.report.sanitize import markdown_code, markdown_text, one_line
from offleash.eval.report.tables import Table, sections, side_words, title


def markdown_report(comparison: Comparison, beside: Sequence[Table] = ()) -> str:
    blocks = [f"# {markdown_text(title(comparison))}"]
    blocks += [f"> **Warning:** {markdown_text(text)}" for text in comparison.warnings]
    words = [side_words(comparison.base), *(side_words(result.side) for result in comparison.policies)]
    blocks.append("\n".join(f"- {markdown_text(text)}" for text in [*words, *comparison.notes]))
    for section in sections(comparison):
        blocks.append(f"## {markdown_text(section.title)}")
        blocks += [markdown_text(text) for text in section.lead]
        for table in section.tables:
            blocks += markdown_table(table)
        if section.result is not None:
            blocks += _examples(section.result)
    blocks += ["## Beside the paper"] * bool(beside) + [block for table in beside for block in markdown_table(table)]
    return "\n\n".join(blocks) + "\n"


def markdown_table(table: Table) -> list[str]:
    rows = [table.header, ("---", *("---:" for _ in table.header[1:]))]
    lines = ["| " + " | ".join(map(markdown_text, rows[0])) + " |", "| " + " | ".join(rows[1]) + " |"]
    lines += ["| " + " | ".join(map(markdown_text, row)) + " |" for row in table.rows]
    note = [markdown_text(table.note)] if table.note else []
    return [f"### {markdown_text(table.title)}", "\n".join(lines), *note]


def _examples(result: PolicyResult) -> list[str]:
    blocks = []
    for name, moved in (("Lost", result.lost), ("Gained", result.gained)):
        for example in moved.examples:
            blocks += _example(name, example)
    return blocks


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
