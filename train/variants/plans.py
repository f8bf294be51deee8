"""The plan of a sweep: what is run, on which problems, and what will be judged, in a file written before the first run.

    stage: screen                  # screen: choose settings, rank variants; confirm: the claims
    recipe: lab
    problems: {split: validation, n: 128}     # over the recipe's probe_args; confirm needs {split: probe, ...}
    seeds: [0, 1]
    settings: {max_steps: 100, monitor_exact: true}       # of every run
    outcome: {nscr: 1.0e-3}        # exact NSCR at this floor, the only thing that gets a verdict
    margin: 0.01                   # what pass@1 may lose against plain, and NSCR against the leash line
    choose: highest outcome at no lower pass@1            # the rule by which a trial is chosen
    equal_samples: 60000           # optional: plain is also run with this many rollouts, as the arm `equal_samples`
    controls:
      plain: [{}, {scale: {learning_rate: 2}}]            # trials: settings over those of the overlay
      low_lr: [{}, {scale: {learning_rate: 0.5}}]
    variants:
      focal: [{}, {explorer: {focal: {gamma: 4}}}]
      "my_module:Safe{weight: 0.2}": [{}, {scale: {learning_rate: 2}}]      # an explorer of your own

Every arm has the same number of trials, so that plain and the controls are tuned as much as the variants; a
confirmation has one, the one that the screen chose. OUT/plan.json has every version of the plan with its hash. Once a
run has begun a plan may only grow: more seeds, arms or trials.
"""

import datetime
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from offleash.eval.errors import ConfigError
from offleash.eval.files import write_atomic
from offleash.eval.stats.exact_support import EPSILONS
from offleash.train.explorers.samples.dynamic_sampling import rollouts
from offleash.train.recipe.catalogue import find_recipe
from offleash.train.recipe.config import Recipe, read_recipe_file, resolved
from offleash.train.variants.overlays import CONTROLS, PLAIN, Overlay, find_overlay, write_settings
from offleash.train.variants.results import base_samples
from offleash.train.variants.runs import ASKED, Run, check_runs, make_runs

SCREEN, CONFIRM = "screen", "confirm"
RULE = "highest outcome at no lower pass@1"
EQUAL_SAMPLES = "equal_samples"
CLAIM_SEEDS = 8
"""With fewer seeds a result is called screened, and nothing more."""
_SPLITS = {SCREEN: "validation", CONFIRM: "probe"}
_RECORD = "plan.json"

Trials = Mapping[str, tuple[Mapping[str, Any], ...]]


@dataclass(frozen=True, slots=True)
class Plan:
    stage: str
    recipe: str
    problems: Mapping[str, Any]
    seeds: tuple[int, ...]
    settings: Mapping[str, Any]
    outcome: Mapping[str, float]
    margin: float
    choose: str
    controls: Trials
    variants: Trials
    equal_samples: int | None = None

    @property
    def eps(self) -> float:
        """The floor of the outcome."""
        return self.outcome["nscr"]

    @property
    def content(self) -> dict[str, Any]:
        """As JSON gives it back."""
        values = {name: getattr(self, name) for name in _KEYS}
        return dict(json.loads(json.dumps({key: value for key, value in values.items() if value is not None})))

    @property
    def sha256(self) -> str:
        """Of the content: comments and the order of keys do not count."""
        return hashlib.sha256(json.dumps(self.content, sort_keys=True).encode()).hexdigest()


_KEYS = tuple(Plan.__dataclass_fields__)
_OPTIONAL = (EQUAL_SAMPLES,)


def read_plan(path: Path) -> Plan:
    """Raises ConfigError naming the key that cannot be used."""
    values = read_recipe_file(path)
    if unknown := sorted(set(values) - set(_KEYS)):
        raise ConfigError(f"{path}: unknown key {unknown[0]!r} in a plan: its keys are {', '.join(_KEYS)}")
    if missing := [key for key in _KEYS if key not in values and key not in _OPTIONAL]:
        raise ConfigError(f"{path}: the plan lacks {', '.join(missing)}")
    try:
        return _checked(values)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def record_plan(plan: Plan, out: Path) -> list[dict[str, Any]]:
    """Store the plan in the sweep's folder and return all its versions, the newest last.

    Raises ConfigError if it does more than add runs to the one that the runs were begun with.
    """
    versions = stored_plans(out)
    begun = any(out.glob(f"*/seed-*/{ASKED}"))
    if begun and not versions:
        raise ConfigError(f"the runs in {out} were begun without a plan: choose another --out")
    if versions and versions[-1]["sha256"] == plan.sha256:
        return versions
    if begun and (change := _more_than_added(versions[-1]["plan"], plan.content)):
        raise ConfigError(
            f"{change}, but runs of the plan in {out} have begun: after that a plan may only grow by seeds, arms or "
            "trials. Choose another --out"
        )
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    versions = [*(versions if begun else []), {"sha256": plan.sha256, "since": now, "plan": plan.content}]
    out.mkdir(parents=True, exist_ok=True)
    write_atomic(out / _RECORD, json.dumps(versions, indent=1).encode())
    return versions


def stored_plans(out: Path) -> list[dict[str, Any]]:
    """Every version of the plan of a sweep, the newest last; [] for a sweep without one."""
    path = out / _RECORD
    try:
        return list(json.loads(path.read_text())) if path.exists() else []
    except ValueError as error:
        raise ConfigError(f"{path} is damaged ({error}): restore it, or choose another --out") from error


def planned_runs(plan: Plan, out: Path, processes: int = 1) -> list[Run]:
    """Every trial of every arm with every seed. Writes the settings of the plan as recipe files to OUT/configs.

    Raises ConfigError for what cannot be trained, and if `equal_samples` is less than what some arm takes.
    """
    recipe = find_recipe(plan.recipe)
    problems = {**_mapping("probe_args", read_recipe_file(recipe).get("probe_args")), **plan.problems}
    base = [recipe, write_settings(out, "common", {**plan.settings, "probe_args": problems})]
    arms = {PLAIN: plan.controls[PLAIN], **plan.controls, **plan.variants}
    overlays = [overlay for arm in arms for overlay in _overlays(arm, arms[arm], arm in plan.controls, out)]
    names = [overlay.name for overlay in overlays]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ConfigError(f"two arms of the plan are called {twice!r}: rename one of the files or classes")
    recipes = check_runs(make_runs(base, overlays, plan.seeds[:1], out), processes)
    if plan.equal_samples is not None:
        totals = {name: total_samples(recipe) for name, recipe in recipes.items()}
        hungriest = max(totals, key=totals.__getitem__)
        if plan.equal_samples < totals[hungriest]:
            raise ConfigError(
                f"equal_samples is {plan.equal_samples:,}, but {hungriest} takes {totals[hungriest]:,} rollouts and "
                f"base samples: set it to at least {totals[hungriest]}"
            )
        steps = [_steps_for(plan.equal_samples, recipes[trial_name(PLAIN, i)]) for i in range(len(arms[PLAIN]))]
        trials = [{**trial, "max_steps": n} for trial, n in zip(arms[PLAIN], steps, strict=True)]
        overlays += _overlays(EQUAL_SAMPLES, trials, True, out)
    return make_runs(base, overlays, plan.seeds, out)


def trial_name(arm: str, index: int) -> str:
    """focal, focal.2, focal.3: the name of a trial's folder."""
    return arm if index == 0 else f"{arm}.{index + 1}"


def total_samples(recipe: Recipe) -> int:
    """Rollouts and base samples of a whole run in one process; dynamic sampling may take more rollouts than this."""
    values = resolved(recipe)
    drawn = rollouts(values, recipe.training.max_steps, 1)
    return drawn + base_samples(values, drawn)


def _steps_for(samples: int, recipe: Recipe) -> int:
    values, steps = resolved(recipe), recipe.training.max_steps
    return math.ceil(samples * steps / rollouts(values, steps, 1))


def _overlays(arm: str, trials: Sequence[Mapping[str, Any]], is_control: bool, out: Path) -> list[Overlay]:
    shipped = () if arm in (PLAIN, EQUAL_SAMPLES) else (find_overlay(arm, out),)
    stem = shipped[0].stem if shipped else arm
    settings = {} if not shipped else read_recipe_file(shipped[0])
    found = []
    for i, trial in enumerate(trials):
        name = trial_name(stem, i)
        paths = (*shipped, write_settings(out, name, trial)) if trial else shipped
        told = {**settings, **{f"trial.{key}": value for key, value in trial.items()}}
        found.append(Overlay(name, paths, told, stem, is_control))
    return found


def _checked(values: Mapping[str, Any]) -> Plan:
    if values["stage"] not in _SPLITS:
        raise ConfigError(f"stage must be screen or confirm, got {values['stage']!r}")
    problems, settings, outcome = (_mapping(key, values[key]) for key in ("problems", "settings", "outcome"))
    split = _SPLITS[values["stage"]]
    if problems.get("split") != split:
        raise ConfigError(f"a {values['stage']} takes problems of the split {split}, got {problems.get('split')!r}")
    if list(outcome) != ["nscr"] or outcome["nscr"] not in EPSILONS:
        floors = ", ".join(f"{eps:g}" for eps in EPSILONS)
        raise ConfigError(f"outcome must be {{nscr: EPS}} with EPS one of {floors}, got {outcome}")
    if settings.get("monitor_exact") is not True:
        raise ConfigError("settings need `monitor_exact: true`: the outcome is of exact probabilities")
    if "probe_args" in settings:
        raise ConfigError("settings have probe_args: write them as `problems`")
    seeds, margin = values["seeds"], values["margin"]
    if not isinstance(seeds, list) or not seeds or any(type(seed) is not int for seed in seeds):
        raise ConfigError(f"seeds must be a list of integers, got {seeds!r}")
    if len(set(seeds)) < len(seeds):
        raise ConfigError(f"seeds must be different, got {seeds}")
    if not isinstance(margin, int | float) or not (math.isfinite(margin) and margin >= 0):
        raise ConfigError(f"margin must be 0 or more, got {margin!r}")
    if values["choose"] != RULE:
        raise ConfigError(f"choose must be {RULE!r}, the only rule there is; got {values['choose']!r}")
    samples = values.get(EQUAL_SAMPLES)
    if samples is not None and (type(samples) is not int or samples < 1):
        raise ConfigError(f"equal_samples must be a number of samples, got {samples!r}")
    controls, variants = (_trials(key, values[key]) for key in ("controls", "variants"))
    _check_arms(values["stage"], controls, variants)
    known = {"problems": problems, "settings": settings, "outcome": outcome, "margin": float(margin)}
    return Plan(**{**values, **known, "seeds": tuple(seeds), "controls": controls, "variants": variants})


def _check_arms(stage: str, controls: Trials, variants: Trials) -> None:
    if PLAIN not in controls:
        raise ConfigError("controls must have plain")
    if both := sorted(set(controls) & set(variants)):
        raise ConfigError(f"{both[0]} is both a control and a variant")
    if misplaced := [arm for arm in variants if arm in (*CONTROLS, EQUAL_SAMPLES)]:
        raise ConfigError(f"{misplaced[0]} is a control, not a variant")
    if EQUAL_SAMPLES in controls:
        raise ConfigError("equal_samples is not an arm of its own: give the number of samples as `equal_samples: N`")
    counts = {arm: len(trials) for arm, trials in {**controls, **variants}.items()}
    if len(set(counts.values())) > 1:
        few, many = min(counts, key=counts.__getitem__), max(counts, key=counts.__getitem__)
        raise ConfigError(
            f"{few} has {counts[few]} trials and {many} {counts[many]}: every arm is tuned with the same number"
        )
    if stage == CONFIRM and counts[PLAIN] != 1:
        raise ConfigError(f"a confirmation has one trial of every arm, the chosen one; got {counts[PLAIN]}")


def _trials(key: str, value: Any) -> Trials:
    found = {}
    for arm, trials in _mapping(key, value).items():
        if not isinstance(trials, list) or not trials:
            raise ConfigError(f"{key}: {arm} must be a list of trials, each a mapping of settings; got {trials!r}")
        found[str(arm)] = tuple(_mapping(f"{key}: {arm}", trial) for trial in trials)
    return found


def _mapping(key: str, value: Any) -> dict[str, Any]:
    if value is not None and not isinstance(value, dict):
        raise ConfigError(f"{key} must be a mapping, got {value!r}")
    return dict(value or {})


def _more_than_added(before: Mapping[str, Any], after: Mapping[str, Any]) -> str | None:
    """What changed besides added seeds, arms and trials; None if nothing did. A confirmation gets no further seeds.

    To add seeds until something shows would find it in 10 % of sweeps where there is nothing, not in 2.5 %.
    """
    for key in _KEYS:
        old, new = before.get(key), after.get(key)
        if key in ("controls", "variants"):
            for arm, trials in before[key].items():
                if after[key].get(arm, [])[: len(trials)] != trials:
                    return f"{key}: {arm} was {_short(trials)} and is now {_short(after[key].get(arm))}"
        elif key == "seeds":
            if lost := [seed for seed in before[key] if seed not in after[key]]:
                return f"the seed {lost[0]} is gone"
            if before["stage"] == CONFIRM and old != new:
                return f"a confirmation's seeds were {_short(old)} and are now {_short(new)}"
        elif old != new:
            return f"{key} was {_short(old)} and is now {_short(new)}"
    return None


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 120 else text[:119] + "…"
