"""As one HTML file that needs nothing else: tables, figures as inline SVG, light and dark, no script, no network.

A content policy forbids scripts and anything fetched, should an escape ever be forgotten. Every text goes through
`html_text`.
"""

import re
from collections.abc import Sequence

from offleash.eval.comparison.result import Comparison, Example, Moved, Scope
from offleash.eval.report.figure_style import inline_svg
from offleash.eval.report.figures import passk_figure, sensitivity_figures, series_figures, support_figure
from offleash.eval.report.numbers import estimate, number, p_words, share
from offleash.eval.report.sanitize import html_text, one_line
from offleash.eval.report.style import STYLE
from offleash.eval.report.tables import (
    Section,
    Table,
    crossing_words,
    last_common,
    moved_words,
    sections,
    side_words,
    title,
)

CONTENT_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
_UNDER_THEIR_HEADING = ("support", "pass-at-k", "samples", "floor")
_WITH_DETAIL = re.compile(r"([-.,%0-9]+) (\[[^\[\]]*\]|\(p [^()]*\))")


def html_report(comparison: Comparison, extra_tables: Sequence[Table] = ()) -> str:
    """The whole page. Of a series the last policy is unfolded, the others folded."""
    heading = html_text(title(comparison))
    sides = [side_words(comparison.base), *(side_words(result.side) for result in comparison.policies[-1:])]
    every = sections(comparison)
    body = [
        f"<h1>{heading}</h1>",
        *(f'<p class="warning" role="alert">{html_text(text)}</p>' for text in comparison.warnings),
        f'<ul class="sides">{"".join(f"<li>{html_text(text)}</li>" for text in [*sides, *comparison.notes])}</ul>',
        *(_series(comparison, section) for section in every if section.result is None),
    ]
    policies = [section for section in every if section.result is not None]
    for section in policies:
        content = _policy(comparison, section)
        if len(policies) == 1:
            body.append(content)
            continue
        unfolded = " open" if section is policies[-1] else ""
        name = html_text(section.title)
        body.append(f'<details class="policy"{unfolded}><summary>{name}</summary>{content}</details>')
    body += ["<h2>Comparison with the paper</h2>"] * bool(extra_tables) + [html_table(table) for table in extra_tables]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{CONTENT_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{heading} - Offleash</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(body)
        + "\n</main>\n<footer>Made by <code>offleash compare</code>. Definitions: The Invisible Leash, "
        "arXiv 2507.14843.</footer>\n</body>\n</html>\n"
    )


def _series(comparison: Comparison, section: Section) -> str:
    panels = "".join(map(inline_svg, series_figures(comparison)))
    caption = "Bands: intervals over problems. The dashed line is the base."
    figure = f'<figure><div class="panels">{panels}</div><figcaption>{caption}</figcaption></figure>'
    tables = "".join(html_table(table) for table in section.tables)
    return f"<h2>{html_text(section.title)}</h2>{figure}{tables}"


def _policy(comparison: Comparison, section: Section) -> str:
    result = section.result
    assert result is not None
    tables = {table.name: html_table(table) for table in section.tables}
    earlier = [other for other in comparison.policies if other is not result]
    curves = result.overall.curves
    parts = [
        "".join(f"<p>{html_text(text)}</p>" for text in section.lead),
        _tiles(result.overall),
        "<h2>Support</h2>",
        _figure(
            inline_svg(support_figure(result)),
            "What the base reached and the policy did not is lost; the reverse is gained.",
        ),
        tables.pop("support"),
        *(tables.pop(name) for name in list(tables) if name.startswith(("tasks-", "domains-"))),
        "<h2>pass@k</h2>",
        '<div class="pair">',
        _figure(inline_svg(passk_figure(result, earlier)), f"Bands: intervals over problems. {crossing_words(curves)}"),
        f"<div>{tables.pop('pass-at-k')}</div></div>",
        "<h2>Samples</h2>",
        *(tables.pop(name) for name in list(tables) if name.startswith(("samples", "perplexity"))),
    ]
    if result.sensitivity:
        panels = "".join(map(inline_svg, sensitivity_figures(result)))
        caption = "Solid: counted by hits / draws. Dashed with band: posterior. The mark is the floor of these draws."
        parts.append("<h2>If the floor were another</h2>")
        parts.append(f'<figure><div class="panels">{panels}</div><figcaption>{caption}</figcaption></figure>')
        parts.append(tables.pop("floor"))
    for name, moved in (("lost", result.lost), ("gained", result.gained)):
        parts += [f"<h2>{name.capitalize()}</h2>", f"<p>{html_text(moved_words(name, moved))}</p>"]
        parts.append(_moved(moved))
    return "\n".join(parts)


def _tiles(scope: Scope) -> str:
    units, curves = scope.units.any_hit, scope.curves
    last = last_common(curves)
    passes = [("pass@1", 0), (f"pass@{curves.ks[last]:,}", last)]
    tiles = [
        (name, f"{share(curves.base[i].value)} → {share(curves.policy[i].value)}", "base → policy")
        for name, i in passes
    ]
    for metric, noise in (("srr", units.shrunk), ("ndr", units.expanded), ("nscr", None)):
        value = units.estimates[metric]
        interval = estimate(value).partition(" ")[2]
        more = f"{interval} · {p_words(noise.p)}" if noise is not None else interval
        tiles.append((metric.upper(), share(value.value), more))
    at = curves.crossing
    words = {"crosses": number(at.value), "base_ahead": "base ahead", "not_overtaken": "none", "equal": "same curves"}
    tiles.append(("crossing k", words[curves.state], f"[{number(at.low)}, {number(at.high)}]"))
    cells = (
        f'<li><span class="name">{html_text(name)}</span><span class="value">{html_text(value)}</span>'
        f'<span class="more">{html_text(more)}</span></li>'
        for name, value, more in tiles
    )
    return f'<ul class="tiles">{"".join(cells)}</ul>'


def _figure(svg: str, caption: str) -> str:
    return f"<figure>{svg}<figcaption>{html_text(caption)}</figcaption></figure>"


def html_table(table: Table) -> str:
    head = "".join(f'<th scope="col">{html_text(cell)}</th>' for cell in table.header)
    rows = "".join(
        f'<tr><th scope="row">{html_text(row[0])}</th>{"".join(f"<td>{_cell(cell)}</td>" for cell in row[1:])}</tr>'
        for row in table.rows
    )
    note = f'<p class="caption">{html_text(table.note)}</p>' if table.note else ""
    label = html_text(table.title)
    heard = ' class="heard"' if table.name in _UNDER_THEIR_HEADING else ""
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{label}"><table><caption{heard}>{label}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>{note}"
    )


def _cell(cell: str) -> str:
    """An interval, or the p extra_tables a number, goes below it in small print."""
    found = _WITH_DETAIL.fullmatch(cell)
    return f"{html_text(found[1])}<small>{html_text(found[2])}</small>" if found else html_text(cell)


def _moved(moved: Moved) -> str:
    return "".join(_example(example, i < 2) for i, example in enumerate(moved.examples))


def _example(example: Example, unfolded: bool) -> str:
    change = example.change
    what = f"{one_line(change.answer, 60)}{' (the whole problem)' if example.whole_problem else ''}"
    line = (
        f"{one_line(change.problem_id, 60)} · {what} · base {change.base_hits:,}/{change.base_n:,}, "
        f"policy {change.policy_hits:,}/{change.policy_n:,} hits"
    )
    texts: Sequence[tuple[str, str | None]] = (
        (f"prompt ({example.task}; gold: {one_line(example.gold, 60)})", example.prompt),
        ("base, " + ("a draw that hits" if change.base_hits else "its first draw"), example.base_text),
        ("policy, " + ("a draw that hits" if change.policy_hits else "its first draw"), example.policy_text),
    )
    blocks = "".join(
        f"<div><h4>{html_text(label)}</h4><pre>{html_text('(no text stored)' if text is None else text)}</pre></div>"
        for label, text in texts
    )
    opened = " open" if unfolded else ""
    return f'<details{opened}><summary>{html_text(line)}</summary><div class="texts">{blocks}</div></details>'
