"""What the runs of a sweep measured: each run's own monitor, on the same probe problems against the same base pool."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from offleash.callbacks import tags
from offleash.callbacks.summary import HISTORY
from offleash.eval.errors import ConfigError
from offleash.eval.stats.passk import powers_of_two
from offleash.train.run_folder.folder import FINAL
from offleash.train.variants.budget import read_budget
from offleash.train.variants.runs import Run, failure, reason

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


def bounds(metric: str) -> tuple[float, float]:
    """What the number can be at most: a share, a net share, or a count or entropy."""
    if metric in ("nscr", "problem_nscr"):
        return -1.0, 1.0
    return 0.0, math.inf if metric in ("distinct_correct", "answer_entropy", "token_entropy") else 1.0


@dataclass(frozen=True, slots=True)
class Measured:
    """One run: its metrics (keys of METRICS) at every measured step, oldest first. An undefined number is NaN."""

    variant: str
    seed: int
    steps: tuple[int, ...]
    series: tuple[Mapping[str, float], ...]
    rollouts: int | None = None
    """That it trained on, until its last measurement; None if the run left too little to tell."""
    base_samples: int = 0
    """On training problems, drawn beside the rollouts."""
    controls: tuple[str, ...] = ()
    """That its variant must be compared with beside those of all."""

    @property
    def first(self) -> Mapping[str, float] | None:
        """At step 0, where the policy is the base; None if that was not measured."""
        return self.series[0] if self.steps[0] == 0 else None

    @property
    def last(self) -> Mapping[str, float]:
        return self.series[-1]


@dataclass(frozen=True, slots=True)
class Sweep:
    """The runs that ended, and what each of the others lacks."""

    runs: tuple[Measured, ...]
    missing: Mapping[str, str]
    """Run -> why there are no numbers of it."""
    base: Mapping[str, float]
    """Metrics of the base; NaN where a base has none (support)."""
    k: int
    base_pool: str
    token_entropy: str
    """The tag, which names the temperature."""


def read_sweep(runs: Sequence[Run]) -> Sweep:
    """Refuses runs that were not measured alike: another base pool means another base, problems, k or sampling."""
    ended = [run for run in runs if run.has_ended]
    if not ended:
        raise ConfigError("no run of this sweep has ended yet: there is nothing to report")
    records = [_record(run.folder) for run in ended]
    pools = {_pool(record): run for record, run in zip(records, ended, strict=True)}
    if len(pools) > 1:
        (first, run), (second, other) = list(pools.items())[:2]
        raise ConfigError(
            f"{run.name} was measured against the base pool {first} and {other.name} against {second}: a variant must "
            "not change the model, the probe problems or how they are sampled"
        )
    first_record = records[0]
    return Sweep(
        runs=tuple(replace(read_run(run.folder, run.overlay.name, run.seed), controls=run.controls) for run in ended),
        missing={run.name: _why_missing(run) for run in runs if not run.has_ended},
        base=_metrics(first_record["base"], first_record),
        k=int(first_record["k"]),
        base_pool=_pool(first_record),
        token_entropy=first_record["token_entropy"],
    )


def read_run(folder: Path, variant: str, seed: int) -> Measured:
    record = _record(folder)
    series = sorted((int(step), _metrics(of_step, record)) for step, of_step in record["steps"].items())
    steps, metrics = zip(*series, strict=True)
    return Measured(variant, seed, steps, metrics, *read_budget(folder, steps[-1]))


def _record(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / HISTORY).read_text()))


def _pool(record: Mapping[str, Any]) -> str:
    return Path(record["base_pool"]).name


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
    values = {key: raw.get(tag) for key, tag in of_key.items()}
    return {key: math.nan if (value := values[key]) is None else float(value) for key in METRICS}


def _why_missing(run: Run) -> str:
    if (failed := failure(run.folder)) is not None:
        return f"failed with status {failed['status']}: {reason(failed['last_lines'])}"
    if (run.folder / FINAL).exists() and run.has_begun:
        return "its last measurement failed (see its log.txt): remove its folder to train it again"
    return "not ended" if run.has_begun else "not begun"
