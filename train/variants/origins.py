"""Where the names in a sweep's report come from: each variant's folder, overlay and settings, and its runs."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import offleash.recipes
from offleash.eval.report.numbers import DASH
from offleash.eval.report.tables import Table
from offleash.train.variants.results import NOT_FINISHED, NOT_STARTED
from offleash.train.variants.runs import Run

_RECIPES = Path(offleash.recipes.__path__[0])


def origins(runs: Sequence[Run], out: Path) -> dict[str, dict[str, Any]]:
    """Variant -> its folder in `out`, the files over the recipe, its settings, and its seeds."""
    found: dict[str, dict[str, Any]] = {}
    for run in runs:
        entry = found.setdefault(
            run.overlay.name,
            {
                "folder": run.folder.parent.name,
                "overlays": [_file(path, out) for path in run.overlay.paths],
                "settings": dict(run.overlay.settings),
                "seeds": [],
            },
        )
        entry["seeds"].append(run.seed)
    return found


def origins_table(runs: Sequence[Run], out: Path, missing: Mapping[str, str]) -> Table:
    """One row per variant; `missing`: by the name of a run, why it has no result."""
    rows = []
    for name, entry in origins(runs, out).items():
        of = [run for run in runs if run.overlay.name == name]
        ended = [str(run.seed) for run in of if run.name not in missing]
        lacking = [f"{run.seed}: {missing[run.name][:60]}" for run in of if run.name in missing]
        settings = ", ".join(f"{key} {_plain(value)}" for key, value in entry["settings"].items())
        cells = (f"{entry['folder']}/seed-*", ", ".join(entry["overlays"]), settings, ", ".join(ended))
        rows.append((name, *(cell or DASH for cell in (*cells, "; ".join(lacking)))))
    header = ("", "folder", "overlay", "settings", "seeds ended", "seeds without a result")
    note = f"Folders and configs are those in {out.name}; recipes ship with Offleash."
    return Table("origins", "Variants, their folders and settings", header, tuple(rows), note)


def missing_words(missing: Mapping[str, str]) -> list[str]:
    """Warnings: every run that failed, and how many have not been run."""
    waiting = {why: [name for name, of in missing.items() if of == why] for why in (NOT_FINISHED, NOT_STARTED)}
    told = [f"{name}: no result, {why}" for name, why in missing.items() if why not in waiting]
    counts = [f"{len(names):,} {why}" for why, names in waiting.items() if names]
    return [*told, f"runs without a result: {', '.join(counts)}"] if counts else told


def _file(path: Path, out: Path) -> str:
    for root, name in ((out, ""), (_RECIPES, "recipes/")):
        if path.resolve().is_relative_to(root.resolve()):
            return f"{name}{path.resolve().relative_to(root.resolve())}"
    return path.name


def _plain(value: Any) -> str:
    """{"pass_at_k": {"k": 4}} as pass_at_k(k 4)."""
    if isinstance(value, Mapping):
        return " ".join(f"{key}({_plain(inner)})" if isinstance(inner, Mapping) and inner else f"{key} {_plain(inner)}"
                        if not isinstance(inner, Mapping) else str(key) for key, inner in value.items())  # fmt: skip
    return value if isinstance(value, str) else json.dumps(value, default=str)
