"""The Support tab as a file: the same page with its data inside, for sharing.

One HTML file holds the metrics, the grids and as many cells as fit; a folder holds all cells, each in a script of its
own that the page loads when it is opened. Scripts are allowed by their hash (one file) or from the folder alone;
nothing is fetched from anywhere (`eval.browse.embed`).
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from offleash.callbacks.tab.plugin import STATIC
from offleash.callbacks.tab.runs import MonitoredRun, RunNotFound, monitored
from offleash.eval.browse.embed import dumped, embedded, inert, key
from offleash.eval.browse.grid import LEVELS
from offleash.eval.files import atomic_path, write_atomic

FILE_LIMIT = 30_000_000
"""Characters of cells in one file, before compression."""

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
{data}
<script type="module">{script}</script>
</body>
</html>
"""


def write_html(runs: dict[str, Path], where: str) -> str:
    """Write the page and return what was written, in words. A folder, or what ends in /, gets all cells."""
    target = Path(where)
    whole = target.is_dir() or where.endswith("/")
    every = [monitored(name, folder) for name, folder in runs.items()]
    data: dict[str, Any] = {key("runs"): [run.described() for run in every]}
    for run in every:
        data[key("noise", run=run.name)] = _or_error(run.noise)
        for level in LEVELS:
            data[key("grid", run=run.name, level=level)] = _or_error(
                lambda r=run, n=level: json.loads(r.grid(n, float("inf")))
            )
    if whole:
        return _write_folder(target, every, data)
    left, room = 0, FILE_LIMIT
    for name, text in _cells(every):
        room -= len(text)
        if room < 0:
            left += 1
        else:
            data[name] = json.loads(text)
    write_atomic(target, _page(data, {}).encode())
    more = f"; {left} cells did not fit, give a folder (--html {target.stem}/) for all" if left else ""
    return f"offleash: wrote {target} ({target.stat().st_size / 1e6:.1f} MB){more}"


def _write_folder(target: Path, runs: list[MonitoredRun], data: dict[str, Any]) -> str:
    files = {}
    with atomic_path(target / "cells") as cells:
        cells.mkdir(parents=True)
        for number, (name, text) in enumerate(_cells(runs)):
            file = f"{number}.js"
            (cells / file).write_text(f"OFFLEASH_CELL({inert(json.dumps(name))}, {inert(text)});", encoding="utf-8")
            files[name] = f"cells/{file}"
    write_atomic(target / "index.html", _page(data, files).encode())
    return f"offleash: wrote {target / 'index.html'} and {len(files)} cells"


def _or_error(made: Any) -> Any:
    try:
        return made()
    except RunNotFound as error:
        return {"error": str(error)}


def _cells(runs: list[MonitoredRun]) -> Iterator[tuple[str, str]]:
    """Every cell as JSON: the last steps first, which is where one looks."""
    for run in runs:
        count = len(run.steps()) * len(run.problem_ids())
        for step, problem, cell in tqdm(run.cells(), "cells", count, leave=False, disable=None):
            yield key("cell", run=run.name, step=str(step), problem=problem), dumped(cell)


def _page(data: dict[str, Any], files: dict[str, str]) -> str:
    made = embedded(data, "render();", [STATIC / "index.js"], files)
    others = " 'self' file:" if files else ""
    return _PAGE.format(
        policy=f"default-src 'none'; style-src 'unsafe-inline'; script-src {made.allowed}{others}",
        title="Offleash: support",
        style=made.style + (STATIC / "style.css").read_text(encoding="utf-8"),
        data=made.data,
        script=made.script,
    )
