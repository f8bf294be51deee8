"""Every benchmark that has a quick setting, one after another, and a table of their ratios: `make bench`.

    python bench/run.py                       # all of them
    python bench/run.py verify plans          # some of them
    python bench/run.py --list

A benchmark takes part by a function `quick()` that returns rows of (name, ratio); files without one are run by hand.
Each runs in a process of its own, in the order of the file names. The table goes to `bench/results/` as Markdown and
JSON, with the machine, the versions and how busy the machine was: ratios by the clock of a busy machine prove little.
A benchmark that fails, or whose package is not installed, is in the table with the reason, and the status is 1.
"""

import argparse
import ast
import datetime
import importlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from offleash.eval.engines.base import LIBRARIES, library_versions

HERE = Path(__file__).parent
RESULTS = HERE / "results"
VERSIONS = (*LIBRARIES, "trl", "ray", "numpy", "scipy", "pyarrow", "math-verify")
CALM = 0.25
"""Cores in use by others, of each core, at which a machine still counts as calm."""
SECONDS = 3.0
"""That a benchmark waits for the former one's processes to end, and that the machine is then watched before it."""


@dataclass(frozen=True, slots=True)
class Row:
    """One ratio, or why there is none."""

    bench: str
    name: str
    ratio: float | None
    failure: str = ""


def found() -> dict[str, bool]:
    """Every benchmark, and whether it has a quick setting. Nothing is imported."""
    files = sorted(path for path in HERE.glob("*.py") if path.name != Path(__file__).name)
    return {path.stem: "quick" in _functions(path) for path in files}


def _functions(path: Path) -> set[str]:
    return {node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)}


def cores_in_use() -> float:
    """By others: called while no benchmark runs."""
    time.sleep(SECONDS)
    return psutil.cpu_percent(SECONDS) / 100 * (os.cpu_count() or 1)


def run(name: str, minutes: float) -> list[Row]:
    """The rows of one benchmark, in a process of its own. What it prints goes to the terminal."""
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "rows.json"
        line = [sys.executable, str(Path(__file__).resolve()), "--into", str(out), name]
        try:
            status = subprocess.run(line, timeout=60 * minutes, check=False).returncode
        except subprocess.TimeoutExpired:
            return [Row(name, "", None, f"not done after {minutes:g} minutes")]
        if not out.exists():
            return [Row(name, "", None, f"ended with status {status}")]
        content = json.loads(out.read_text())
    if isinstance(content, str):
        return [Row(name, "", None, content)]
    return [Row(name, what, ratio) for what, ratio in content]


def run_here(name: str, out: Path) -> None:
    """The child's part: the rows, or the reason that there are none."""
    try:
        content: Any = importlib.import_module(name).quick()
    except Exception as error:  # whatever it is, it belongs into the table
        content = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}"
    out.write_text(json.dumps(content))


def machine() -> dict[str, Any]:
    """What the ratios may depend on, and nothing that names the machine."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    model = next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine()
    )
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }


def markdown(record: dict[str, Any]) -> str:
    about, rows = record["machine"], [Row(**row) for row in record["rows"]]
    busy = "" if record["calm"] else " **The machine was busy: ratios by the clock prove little.**"
    versions = ", ".join(f"{name} {number}" for name, number in record["versions"].items())
    table = [
        f"| `{row.bench}.py` | {row.name or row.failure} | {'-' if row.ratio is None else f'{row.ratio:.3f}'} |"
        for row in rows
    ]
    return "\n".join(
        [
            f"# Benchmarks, {record['date']}",
            "",
            f"{about['cpu']}, {about['cores']} cores, {about['memory_gib']} GiB, {about['system']}, Python "
            f"{about['python']}; {versions}.",
            "",
            f"At most {record['cores_in_use']:.1f} cores were in use before any of them.{busy}",
            "",
            "| file | ratio of | |",
            "|---|---|---|",
            *table,
            "",
        ]
    )


def write(record: dict[str, Any], folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    stem = folder / record["date"].replace(":", "").replace(" ", "-")
    stem.with_suffix(".json").write_text(json.dumps(record, indent=1) + "\n")
    stem.with_suffix(".md").write_text(markdown(record))
    return stem.with_suffix(".md")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="default: all with a quick setting")
    parser.add_argument("--list", action="store_true", help="name the benchmarks and run none")
    parser.add_argument("--minutes", type=float, default=30.0, help="that each may take (default: %(default)s)")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="FOLDER")
    parser.add_argument("--into", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.into is not None:
        run_here(options.names[0], options.into)
        return 0
    known = found()
    if options.list:
        print("\n".join(f"{name:16}{'' if quick else 'by hand'}" for name, quick in known.items()))
        return 0
    names = options.names or [name for name, quick in known.items() if quick]
    if strange := [name for name in names if not known.get(name)]:
        parser.error(f"no benchmark with a quick setting is called {', '.join(strange)}: see --list")
    rows, in_use = list[Row](), list[float]()
    for name in names:
        in_use.append(cores_in_use())
        start = time.monotonic()
        print(f"== {name}", flush=True)
        rows += run(name, options.minutes)
        print(f"== {name}: {time.monotonic() - start:.0f} s", flush=True)
    record = {
        "date": f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M}",
        "machine": machine(),
        "versions": library_versions(VERSIONS),
        "calm": max(in_use) <= CALM * (os.cpu_count() or 1),
        "cores_in_use": max(in_use),
        "rows": [asdict(row) for row in rows],
    }
    path = write(record, options.results)
    print(f"\n{markdown(record)}\n{path}")
    return 1 if any(row.ratio is None for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
