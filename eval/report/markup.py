"""A comparison as Markdown: what fits into a README, an issue or a chat.

The verdict, one table, the support table, and the clearest unit lost and gained with its completions, in indented
blocks, which no text can close. Tables are such as GitHub renders.
"""

from collections.abc import Sequence

from offleash.eval.comparison.examples import cut_text
from offleash.eval.comparison.result import Comparison, Example
from offleash.eval.report.brief import brief_table
from offleash.eval.report.sanitize import markdown_code, markdown_text, one_line
from offleash.eval.report.tables import Table, sections
from offleash.eval.report.words import side_words, title, verdict_words

_TEXT_LIMIT = 600
"""Characters of a completion; all of it is in the other formats."""


def markdown_report(comparison: Comparison, extra_tables: Sequence[Table] = ()) -> str:
    last = comparison.policies[-1]
    blocks = [f"# {markdown_text(title(comparison))}"]
    blocks += [f"> **Warning:** {markdown_text(text)}" for text in comparison.warnings]
    blocks.append(f"**{markdown_text(verdict_words(last))}**")
    support = [table for table in sections(comparison)[-1].tables if table.name == "support"]
    for table in (brief_table(comparison), *support, *extra_tables):
        blocks += markdown_table(table)
    for name, moved in (("Lost", last.lost), ("Gained", last.gained)):
        blocks += [block for example in moved.examples[:1] for block in _example(name, moved.units, example)]
    words = [side_words(comparison.base), side_words(last.side), *comparison.notes]
    blocks.append("\n".join(f"- {markdown_text(text)}" for text in words))
    return "\n\n".join(blocks) + "\n"


def markdown_table(table: Table) -> list[str]:
    rows = [table.header, ("---", *("---:" for _ in table.header[1:]))]
    lines = ["| " + " | ".join(map(markdown_text, rows[0])) + " |", "| " + " | ".join(rows[1]) + " |"]
    lines += ["| " + " | ".join(map(markdown_text, row)) + " |" for row in table.rows]
    note = [markdown_text(table.note)] if table.note else []
    return [f"### {markdown_text(table.title)}", "\n".join(lines), *note]


def _example(name: str, units: int, example: Example) -> list[str]:
    change = example.change
    heading = f"{name}, the clearest of {units:,}: {change.problem_id}, {change.answer}"
    texts = [
        ("Prompt", example.prompt),
        (f"Base ({change.base_hits}/{change.base_n} hits)", example.base_text),
        (f"Policy ({change.policy_hits}/{change.policy_n} hits)", example.policy_text),
    ]
    blocks = [f"#### {markdown_text(one_line(heading, 120))}"]
    for label, text in texts:
        shown = "(no text stored)" if text is None else cut_text(text, _TEXT_LIMIT)
        blocks += [f"{markdown_text(label)}:", markdown_code(shown)]
    return blocks
