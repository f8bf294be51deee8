"""A sweep without a plan, described: metrics over seeds, and differences from plain. No verdict follows from it.

Pure functions of `Measured` runs. Intervals are over training seeds, on these probe problems and this base pool. Two
runs with the same seed share problems, order and sampling noise, so they are compared as a pair; if the seeds of two
variants differ, Welch's test is used. p-values are not corrected for the number of variants or metrics.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from offleash.eval.errors import ConfigError
from offleash.eval.stats.intervals import Estimate
from offleash.train.variants.equal_pass import position
from offleash.train.variants.overlays import CONTROLS, PLAIN
from offleash.train.variants.results import Measured, bounds
from offleash.train.variants.significance import Difference, mean_over_seeds, paired, welch

PASS, NSCR = "pass_at_1", "nscr"
SLACK = 0.05
"""Relative difference in rollouts from plain above which a warning is given. Dynamic sampling overshoots a little."""


@dataclass(frozen=True, slots=True)
class EarlyStop:
    """Plain stopped at the variant's pass@1 (see `at_equal_pass`), over the seeds that both have."""

    estimates: Mapping[str, Estimate]
    differences: Mapping[str, Difference]
    """The variant minus that."""


@dataclass(frozen=True, slots=True)
class VariantResult:
    name: str
    is_control: bool
    seeds: tuple[int, ...]
    estimates: Mapping[str, Estimate]
    since_start: Estimate
    """NSCR minus that of step 0 of the same run, which removes the shift that the base pool causes in both."""
    against_plain: Mapping[str, Difference] | None
    """Metric -> the variant minus plain; None for plain."""
    early_stop: EarlyStop | None


@dataclass(frozen=True, slots=True)
class Analysis:
    variants: tuple[VariantResult, ...]
    warnings: tuple[str, ...]


def analyze(runs: Sequence[Measured], warnings: Sequence[str] = ()) -> Analysis:
    """Plain first, then in the order of the runs. `warnings` come before those of the analysis."""
    groups: dict[str, list[Measured]] = {PLAIN: []}
    for run in runs:
        groups.setdefault(run.variant, []).append(run)
    if not groups[PLAIN]:
        raise ConfigError("no run of plain has ended: nothing to compare with")
    metrics = list(groups[PLAIN][0].last)
    results = [
        VariantResult(
            name=name,
            is_control=name in CONTROLS,
            seeds=tuple(run.seed for run in members),
            estimates={m: mean_over_seeds([r.last[m] for r in members], bounds(m)) for m in metrics},
            since_start=_since_start(members),
            against_plain=None if name == PLAIN else _differences(members, groups[PLAIN]),
            early_stop=None if name == PLAIN else _early_stop(members, groups[PLAIN]),
        )
        for name, members in groups.items()
    ]
    return Analysis(tuple(results), (*warnings, *_warnings(groups)))


def at_equal_pass(run: Measured, target: float) -> dict[str, float]:
    """The run's metrics where its pass@1 was `target`, interpolated linearly; at its end if it never reached it."""
    place = position([metrics[PASS] for metrics in run.series], target)
    return {metric: place.between([of_step[metric] for of_step in run.series]) for metric in run.last}


def _since_start(members: Sequence[Measured]) -> Estimate:
    """NSCR minus that of step 0, which is sampled anew for each seed; NaN if step 0 was not measured."""
    return mean_over_seeds([run.last[NSCR] - run.first[NSCR] if run.first else math.nan for run in members])


def _differences(ours: Sequence[Measured], theirs: Sequence[Measured]) -> dict[str, Difference]:
    ours, theirs = (sorted(side, key=lambda run: run.seed) for side in (ours, theirs))
    test = paired if [run.seed for run in ours] == [run.seed for run in theirs] else welch
    return {m: test([run.last[m] for run in ours], [run.last[m] for run in theirs]) for m in ours[0].last}


def _early_stop(members: Sequence[Measured], plain: Sequence[Measured]) -> EarlyStop | None:
    by_seed = {run.seed: run for run in plain}
    pairs = [(run.last, at_equal_pass(by_seed[run.seed], run.last[PASS])) for run in members if run.seed in by_seed]
    if not pairs:
        return None
    metrics = list(pairs[0][0])
    return EarlyStop(
        {m: mean_over_seeds([stopped[m] for _, stopped in pairs], bounds(m)) for m in metrics},
        {m: paired([ours[m] for ours, _ in pairs], [stopped[m] for _, stopped in pairs]) for m in metrics},
    )


def _warnings(groups: Mapping[str, Sequence[Measured]]) -> list[str]:
    found = []
    if any(len(members) < 2 for members in groups.values()):
        found.append("a variant with a single seed has no interval and no p-value: run at least 2 seeds, preferably 8")
    if same := [name for name, of in groups.items() if name != PLAIN and _are_same(of, groups[PLAIN])]:
        found.append(f"{' and '.join(same)} gave exactly the same numbers as plain: its settings have no effect here")
    return [*found, *_budget_warnings(groups)]


def _budget_warnings(groups: Mapping[str, Sequence[Measured]]) -> list[str]:
    found = []
    rollouts = {name: [run.rollouts for run in members] for name, members in groups.items()}
    known = [count for counts in rollouts.values() for count in counts if count is not None]
    if len(known) == sum(map(len, rollouts.values())):
        usual = min(count for count in rollouts[PLAIN] if count is not None)
        if any(abs(count - usual) > SLACK * usual for count in known):
            found.append(f"the number of training rollouts differs: {_told(rollouts)}")
    else:
        steps = {name: [run.steps[-1] for run in members] for name, members in groups.items()}
        if len({step for last in steps.values() for step in last}) > 1:
            found.append(f"the last measured steps differ; check that the number of rollouts does not: {_told(steps)}")
    extra = {name: [run.base_samples for run in members] for name, members in groups.items()}
    if drawing := {name: counts for name, counts in extra.items() if any(counts)}:
        found.append(f"some variants also drew base samples on training problems: {_told(drawing)}")
    return found


def _told(counts: Mapping[str, Sequence[int | None]]) -> str:
    """plain 51,200, early 25,600/51,200."""
    known = {name: sorted({count for count in of if count is not None}) for name, of in counts.items()}
    return ", ".join(f"{name} {'/'.join(f'{count:,}' for count in of)}" for name, of in known.items())


def _are_same(ours: Sequence[Measured], plain: Sequence[Measured]) -> bool:
    by_seed = {run.seed: run for run in plain}
    shared = [run for run in ours if run.seed in by_seed]
    return bool(shared) and all(repr(run.last) == repr(by_seed[run.seed].last) for run in shared)
