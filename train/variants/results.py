"""The results of a sweep: what each run's monitor measured, and how many samples the run was trained on.

All runs are measured on the same probe problems against the same base pool. The samples are counted from what a run
left in its folder: its resolved recipe, its last measured step, and its last checkpoint, which has a random state for
each process. The monitor's own samples are not part of them.
"""

import inspect
import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from offleash.callbacks import tags
from offleash.callbacks.summary import HISTORY, read_record
from offleash.eval.errors import ConfigError
from offleash.eval.stats.passk import powers_of_two
from offleash.train.explorers import find_explorer
from offleash.train.explorers.samples.dynamic_sampling import FILE as DRAWN
from offleash.train.explorers.samples.dynamic_sampling import rollouts
from offleash.train.recipe.explorer_flags import explorer_mapping
from offleash.train.run_folder.changes import RESOLVED
from offleash.train.run_folder.checkpoints import last_complete_checkpoint
from offleash.train.run_folder.folder import FINAL
from offleash.train.variants.runs import BUDGET, Run, failure, reason

METRICS = {
    "pass_at_1": "pass@1",
    "nscr": "NSCR",
    "srr": "SRR",
    "ndr": "NDR",
    "sds": "SDS",
    "problem_nscr": "NSCR (problems)",
    "problem_srr": "SRR (problems)",
    "problem_ndr": "NDR (problems)",
    "problem_sds": "SDS (problems)",
    "pass_at_top": "pass@top",
    "distinct_correct": "distinct correct",
    "answer_entropy": "answer entropy",
    "token_entropy": "token entropy",
    "no_answer": "no answer",
    "truncated": "truncated",
    "failed": "verifier failed",
}
"""Key -> title. NSCR, SRR, NDR and SDS are of units; distinct correct answers are per problem; entropies in nats."""
NOT_FINISHED, NOT_STARTED = "not finished", "not started"
_DRAW_FROM_BASE = ("anchor", "rehearsal", "seeding")
"""Explorers that draw base samples on training problems."""


def bounds(metric: str) -> tuple[float, float]:
    """The range of the metric: a fraction, a net fraction, or a count or entropy."""
    if metric in ("nscr", "problem_nscr"):
        return -1.0, 1.0
    return 0.0, math.inf if metric in ("distinct_correct", "answer_entropy", "token_entropy") else 1.0


@dataclass(frozen=True, slots=True)
class Measured:
    """One run: its metrics (keys of METRICS) at every measured step, oldest first. Undefined numbers are NaN."""

    variant: str
    seed: int
    steps: tuple[int, ...]
    series: tuple[Mapping[str, float], ...]
    rollouts: int | None = None
    """Trained on until the last measurement; None if it is unknown."""
    base_samples: int = 0
    """Drawn on training problems, in addition to the rollouts."""
    seconds: float | None = None
    """Of training steps, by the wall clock: measurements and base samples are not among them."""

    @property
    def first(self) -> Mapping[str, float] | None:
        """At step 0, where the policy is the base; None if that was not measured."""
        return self.series[0] if self.steps[0] == 0 else None

    @property
    def last(self) -> Mapping[str, float]:
        return self.series[-1]


@dataclass(frozen=True, slots=True)
class Sweep:
    """The runs that have ended, and why the others have no results."""

    runs: tuple[Measured, ...]
    missing: Mapping[str, str]
    """Run -> why it has no results."""
    base: Mapping[str, float]
    """Metrics of the base; NaN for those it does not have (support)."""
    k: int
    base_pool: str
    token_entropy: str
    """The tag, which names the temperature."""


def read_sweep(runs: Sequence[Run]) -> Sweep:
    """Raises ConfigError if runs have different base pools, that is another base, other problems, k or sampling."""
    ended = [run for run in runs if run.has_ended]
    if not ended:
        raise ConfigError("no run of this sweep has ended yet: nothing to report")
    records = [_record(run.folder) for run in ended]
    pools = {_base_words(record): run for record, run in zip(records, ended, strict=True)}
    if len(pools) > 1:
        (first, run), (second, other) = list(pools.items())[:2]
        raise ConfigError(
            f"{run.name} was measured against the base pool {first} and {other.name} against {second}: a variant must "
            "not change the model, the probe problems or how they are sampled"
        )
    first_record = records[0]
    return Sweep(
        runs=tuple(map(read_run, ended)),
        missing={run.name: _why_missing(run) for run in runs if not run.has_ended},
        base=_metrics(first_record["base"], first_record),
        k=int(first_record["k"]),
        base_pool=_pool(first_record),
        token_entropy=first_record["token_entropy"],
    )


def read_run(run: Run) -> Measured:
    record = _record(run.folder)
    series = sorted((int(step), _metrics(of_step, record)) for step, of_step in record["steps"].items())
    steps, metrics = zip(*series, strict=True)
    return Measured(run.overlay.name, run.seed, steps, metrics, *read_budget(run.folder, steps[-1]))


class Budget(NamedTuple):
    rollouts: int | None
    """Over all processes; None if it is unknown."""
    base_samples: int
    seconds: float | None = None


def read_budget(folder: Path, last_step: int) -> Budget:
    """From the last checkpoint, or from what was written before that was deleted."""
    if (folder / BUDGET).exists():
        return Budget(**json.loads((folder / BUDGET).read_text()))
    if not (folder / RESOLVED).exists():
        return Budget(None, 0)
    recipe = yaml.safe_load((folder / RESOLVED).read_text())
    drawn = seconds = None
    if (checkpoint := last_complete_checkpoint(folder)) is not None:
        seconds = _seconds(checkpoint)
        if (checkpoint / DRAWN).exists():  # dynamic sampling: as many as it took
            drawn = int(json.loads((checkpoint / DRAWN).read_text())["rollouts"])
        elif processes := len(list(checkpoint.glob("rng_state*.pth"))):
            drawn = rollouts(recipe, last_step, processes)
    return Budget(drawn, base_samples(recipe, drawn), seconds)


def _seconds(checkpoint: Path) -> float | None:
    """The sum of TRL's `step_time`, a mean over the steps since the entry before; None if it was not logged."""
    rows = json.loads((checkpoint / "trainer_state.json").read_text()).get("log_history", [])
    timed = [(row["step"], row["step_time"]) for row in rows if "step_time" in row]
    steps = [step for step, _ in timed]
    lengths = [after - before for before, after in itertools.pairwise([0, *steps])]
    return math.fsum(n * each for n, (_, each) in zip(lengths, timed, strict=True)) if timed else None


def base_samples(recipe: Mapping[str, Any], drawn: int | None) -> int:
    """At most `problems` x k: for the training problems of the recipe, or those that `drawn` rollouts cover."""
    total = 0
    for name, given in explorer_mapping(recipe.get("explorer")).items():
        if name not in _DRAW_FROM_BASE:
            continue
        parameters = inspect.signature(find_explorer(name)).parameters.values()
        arguments = {**{parameter.name: parameter.default for parameter in parameters}, **given}
        if arguments.get("source", "base") != "base":
            continue
        seen = None if drawn is None else drawn // recipe["num_generations"]
        limits = [arguments["problems"] or seen, (recipe.get("train_args") or {}).get("n")]
        total += min((limit for limit in limits if limit is not None), default=0) * arguments["k"]
    return total


def _record(folder: Path) -> dict[str, Any]:
    record = read_record(folder)
    if record is None:
        raise ConfigError(f"{folder / HISTORY} cannot be read: remove {folder} to train the run again")
    return record


def _pool(record: Mapping[str, Any]) -> str:
    return Path(record["base_pool"]).name


def _base_words(record: Mapping[str, Any]) -> str:
    """What a run was measured against: a base pool may hold more, of which each run takes its problems and its k."""
    samples = record.get("base_hits") or ""
    return f"{_pool(record)} (k = {record['k']}{f', counts {samples[:8]}' if samples else ''})"


def _metrics(raw: Mapping[str, float | None], record: Mapping[str, Any]) -> dict[str, float]:
    of_key = {
        "pass_at_1": tags.pass_at(1).tag,
        "pass_at_top": tags.pass_at(powers_of_two(record["k"])[-1]).tag,
        **{name: getattr(tags.UNIT, name).tag for name in ("nscr", "srr", "ndr", "sds")},
        **{f"problem_{name}": getattr(tags.PROBLEM, name).tag for name in ("nscr", "srr", "ndr", "sds")},
        "distinct_correct": tags.DISTINCT_CORRECT.tag,
        "answer_entropy": tags.ANSWER_ENTROPY.tag,
        "token_entropy": record["token_entropy"],
        "no_answer": tags.NO_ANSWER.tag,
        "truncated": tags.TRUNCATED.tag,
        "failed": tags.FAILED.tag,
    }
    return {key: math.nan if (value := raw.get(of_key[key])) is None else float(value) for key in METRICS}


def _why_missing(run: Run) -> str:
    if (failed := failure(run.folder)) is not None:
        return f"failed with status {failed['status']}: {reason(failed['last_lines'])}"
    if (run.folder / FINAL).exists() and run.has_begun:
        return "the last measurement failed (see log.txt): remove the folder to train it again"
    return NOT_FINISHED if run.has_begun else NOT_STARTED
