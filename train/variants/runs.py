"""One run of a sweep: a variant with a seed, its folder, its training arguments and its state.

OUT/NAME/seed-S/   the run's folder, as `offleash.train` leaves it
    asked.json     the settings of the run; the folder is never used with other settings
    log.txt        the output of the run
    failed.json    exit status and last lines, if it failed
    budget.json    what the run took, written before its checkpoints and samples are deleted (sweeps with a plan)
"""

import json
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from offleash.callbacks.summary import HISTORY, read_record
from offleash.eval.errors import ConfigError
from offleash.eval.files import write_atomic
from offleash.eval.secrets import hide, hide_in_flags, without_secrets
from offleash.train.recipe.config import Recipe, flag_name, read_recipe_file
from offleash.train.run_folder.checkpoints import checkpoints
from offleash.train.run_folder.folder import FINAL, POOLS
from offleash.train.variants.overlays import Overlay, check_comparable, check_controls, load_variants

ASKED, LOG, FAILED, BUDGET = "asked.json", "log.txt", "failed.json", "budget.json"
BASE_POOLS = "base-pools"
BAR = re.compile(r"\d%\|")
"""Part of every progress bar."""
OURS = ("--config", "--seed", "--output_dir", "--monitor_base_pools", "--resume")


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    overlay: Overlay
    seed: int
    folder: Path
    words: tuple[str, ...]
    """Arguments of `offleash.train`."""
    asked: Mapping[str, Any]
    """Keys of the recipe, of the overlay (`overlay.KEY`), and `flags`."""

    @property
    def name(self) -> str:
        return run_name(self.overlay.name, self.seed)

    @property
    def log(self) -> Path:
        return self.folder / LOG

    @property
    def has_begun(self) -> bool:
        """Step 0 has been measured, so the base pool exists."""
        return (self.folder / HISTORY).exists()

    @property
    def has_ended(self) -> bool:
        """The model is saved, which a run does last, and the last measurement did not fail."""
        if not (self.has_begun and (self.folder / FINAL).exists()):
            return False
        saved = [int(path.name.removeprefix("checkpoint-")) for path in checkpoints(self.folder)]
        record = read_record(self.folder)
        return record is not None and max(saved, default=0) <= max(record["steps"], default=0)


def run_name(overlay: str, seed: int) -> str:
    return f"{overlay} seed {seed}"


def make_runs(
    base: Sequence[Path], overlays: Sequence[Overlay], seeds: Sequence[int], out: Path, extra: Sequence[str] = ()
) -> list[Run]:
    """Every variant with every seed, seed by seed, so that an interrupted sweep has complete seeds.

    `base`: the recipe, and files that hold for every run.
    """
    flags = [flag_name(word.partition("=")[0]) for word in extra]
    if taken := [flag for flag in flags if flag.split(".")[0] in (*OURS, "--explorer")]:
        raise ConfigError(f"{', '.join(taken)} after `--`: the sweep sets that for each run")
    for overlay in overlays:
        if both := [key for key in overlay.settings if f"--{key}" in flags]:
            raise ConfigError(f"--{both[0]} after `--` overrides a setting of the variant {overlay.name}: remove one")
    settings: dict[str, Any] = {}
    for file in base:
        settings |= read_recipe_file(file)
        if "explorer" in settings:
            raise ConfigError(f"{file} has the key `explorer`, so plain would have an explorer: move it to an overlay")
    return [_run(base, settings, overlay, seed, out, extra) for seed in seeds for overlay in overlays]


def check_runs(runs: Sequence[Run], processes: int = 1) -> dict[str, Recipe]:
    """The recipe of each overlay.

    Raises ConfigError for variants that `processes` processes cannot train, and for controls that control nothing.
    """
    firsts = {run.overlay.name: run for run in reversed(runs)}
    recipes = load_variants({name: firsts[name].words for name in reversed(firsts)}, processes)
    check_comparable(recipes)
    check_controls(recipes, {name: run.overlay.arm for name, run in firsts.items()})
    return recipes


def left_out(runs: Sequence[Run], out: Path) -> list[str]:
    """A warning if the folder has other seeds of these variants, so that none are left out silently."""
    asked, names = {run.folder for run in runs}, {run.overlay.name for run in runs}
    others = sorted(path.parent for path in out.glob(f"*/seed-*/{ASKED}") if path.parents[1].name in names)
    told = [f"{folder.parent.name} {folder.name}" for folder in others if folder not in asked]
    return [f"runs in {out} that were not requested and are not in this report: {', '.join(told)}"] if told else []


def check_unchanged(run: Run) -> None:
    """Raises ConfigError if the folder has a run with other settings."""
    path = run.folder / ASKED
    if not path.exists():
        if run.folder.exists() and any(run.folder.iterdir()):
            raise ConfigError(f"{run.folder} contains files that are not from a sweep: choose another --out")
        return
    before = json.loads(path.read_text())
    if changed := sorted(key for key in {*before, *run.asked} if run.asked.get(key) != before.get(key)):
        told = "; ".join(f"{key} was {_short(before.get(key))}, now {_short(run.asked.get(key))}" for key in changed)
        raise ConfigError(f"{run.folder} was started with other settings ({told}): choose another --out")


def record_start(run: Run) -> None:
    run.folder.mkdir(parents=True, exist_ok=True)
    (run.folder / FAILED).unlink(missing_ok=True)
    write_atomic(run.folder / ASKED, json.dumps(run.asked, indent=1).encode())


def record_failure(run: Run, status: int, last_lines: Sequence[str]) -> None:
    record = {"status": status, "last_lines": [hide(line) for line in last_lines]}
    write_atomic(run.folder / FAILED, json.dumps(record, indent=1).encode())


def keep_numbers(run: Run, budget: Mapping[str, Any]) -> None:
    """Delete what only a continued run, or another look at its samples, would need: checkpoints and pools."""
    write_atomic(run.folder / BUDGET, json.dumps(budget).encode())
    for folder in (*checkpoints(run.folder), run.folder / POOLS):
        shutil.rmtree(folder, ignore_errors=True)


def asked_of(run: Run) -> dict[str, Any]:
    """What the run changed of the recipe when it was started: by its overlay, and by its trial over that."""
    before = json.loads((run.folder / ASKED).read_text())
    told = {key.removeprefix("overlay."): value for key, value in before.items() if key.startswith("overlay.")}
    trial = {key.removeprefix("trial."): told.pop(key) for key in list(told) if key.startswith("trial.")}
    scale = dict(told.get("scale", {}))
    for key, factor in trial.pop("scale", {}).items():
        scale[key] = scale.get(key, 1) * factor
    return {**told, **trial, **({"scale": scale} if scale else {})}


def drop_bars(lines: Sequence[str]) -> list[str]:
    return [line for line in lines if not BAR.search(line)]


def reason(last_lines: Sequence[str]) -> str:
    """The last line that mentions an error, or else the last line."""
    told = drop_bars(last_lines)
    errors = [line for line in told if re.search("error|exception", line, re.IGNORECASE)]
    return (errors or told or [""])[-1]


def failure(folder: Path) -> dict[str, Any] | None:
    """What `record_failure` wrote."""
    path = folder / FAILED
    return dict(json.loads(path.read_text())) if path.exists() else None


def _run(
    base: Sequence[Path],
    settings: Mapping[str, Any],
    overlay: Overlay,
    seed: int,
    out: Path,
    extra: Sequence[str],
) -> Run:
    folder = out / overlay.name / f"seed-{seed}"
    words = [
        *(word for file in (*base, *overlay.paths) for word in ("--config", str(file))),
        *("--seed", str(seed), "--output_dir", str(folder), "--monitor_base_pools", str(out / BASE_POOLS)),
        *("--resume", *extra),
    ]
    asked = without_secrets(
        {
            **{key: value for key, value in settings.items() if f"--{key}" not in OURS},
            **{f"overlay.{key}": value for key, value in overlay.settings.items()},
            "flags": hide_in_flags(extra),
        }
    )
    # As JSON reads it back: dates and tuples would never compare equal.
    return Run(overlay, seed, folder, tuple(words), json.loads(json.dumps(asked, default=str)))


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 120 else text[:119] + "…"
