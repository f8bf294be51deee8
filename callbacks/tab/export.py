"""The Support tab as a file: the same page with its data inside, for sharing.

One HTML file holds the metrics, the grids and as many cells as fit; a folder holds all cells, each in a script of its
own that the page loads when it is opened. Scripts are allowed by their hash (one file) or from the folder alone;
nothing is fetched from anywhere. Data are JSON, in which `<` is escaped: model text cannot end the element that it
stands in.
"""

import base64
import gzip
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from offleash.callbacks.tab.plugin import STATIC, dumped
from offleash.callbacks.tab.runs import MonitoredRun, RunNotFound, monitored
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
<script type="application/json" id="data">{data}</script>
<script{kind}>{script}</script>
</body>
</html>
"""


def write_html(runs: dict[str, Path], where: str) -> str:
    """Write the page and return what was written, in words. A folder, or what ends in /, gets all cells."""
    target = Path(where)
    whole = target.is_dir() or where.endswith("/")
    every = [monitored(name, folder) for name, folder in runs.items()]
    data: dict[str, Any] = {_key("runs"): [run.described() for run in every]}
    for run in every:
        for level in LEVELS:
            data[_key("grid", run=run.name, level=level)] = _grid(run, level)
    if whole:
        return _write_folder(target, every, data)
    left, room = 0, FILE_LIMIT
    for key, text in _cells(every):
        room -= len(text)
        if room < 0:
            left += 1
        else:
            data[key] = json.loads(text)
    write_atomic(target, _page(every, data, {}).encode())
    more = f"; {left} cells did not fit, give a folder (--html {target.stem}/) for all" if left else ""
    return f"offleash: wrote {target} ({target.stat().st_size / 1e6:.1f} MB){more}"


def _write_folder(target: Path, runs: list[MonitoredRun], data: dict[str, Any]) -> str:
    files = {}
    with atomic_path(target / "cells") as cells:
        cells.mkdir(parents=True)
        for number, (key, text) in enumerate(_cells(runs)):
            name = f"{number}.js"
            (cells / name).write_text(f"OFFLEASH_CELL({_inert(json.dumps(key))}, {_inert(text)});", encoding="utf-8")
            files[key] = f"cells/{name}"
    write_atomic(target / "index.html", _page(runs, data, files).encode())
    return f"offleash: wrote {target / 'index.html'} and {len(files)} cells"


def _grid(run: MonitoredRun, level: str) -> dict[str, Any]:
    try:
        return run.grid(level)
    except RunNotFound as error:
        return {"error": str(error)}


def _cells(runs: list[MonitoredRun]) -> Iterator[tuple[str, str]]:
    """Every cell as JSON: the last steps first, which is where one looks."""
    wanted = [(run, step, problem) for run in runs for step in reversed(run.steps()) for problem in run.problem_ids()]
    for run, step, problem in tqdm(wanted, "cells", leave=False, disable=None):
        yield (
            _key("cell", run=run.name, step=str(step), problem=problem),
            dumped(run.cell(str(step), problem)),
        )


def _key(route: str, run: str = "", level: str = "", step: str = "", problem: str = "") -> str:
    return "\n".join((route, run, level, step, problem))


def _page(runs: list[MonitoredRun], data: dict[str, Any], files: dict[str, str]) -> str:
    packed = gzip.compress(dumped({"data": data, "files": files}).encode(), mtime=0)
    boot, module = ((STATIC / name).read_text(encoding="utf-8") for name in ("embedded.js", "index.js"))
    script = f"{boot}\n{module.replace('export async function', 'async function')}\nrender();\n"
    allowed = f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
    others = " 'self' file:" if files else ""
    return _PAGE.format(
        policy=f"default-src 'none'; style-src 'unsafe-inline'; script-src {allowed}{others}",
        title="Offleash: support",
        style=(STATIC / "style.css").read_text(encoding="utf-8"),
        data=_inert(json.dumps(base64.b64encode(packed).decode())),
        kind=' type="module"',
        script=script,
    )


def _inert(text: str) -> str:
    """JSON that cannot end a script element, whatever text is in it."""
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
