"""What a sweep shows: each variant's numbers over seeds, its differences to plain and to the controls, and a verdict.

Pure functions of `Measured` runs. The intervals are over training seeds: what another seed would give on these probe
problems against this base pool. Two runs of one seed share problems, order and sampling noise, so they are compared as
a pair; where the seeds of two variants are not the same, Welch's test is taken.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from offleash.eval.errors import ConfigError
from offleash.eval.estimate import Estimate
from offleash.train.variants.overlays import CONTROLS, PLAIN
from offleash.train.variants.results import Measured
from offleash.train.variants.significance import ALPHA, Difference, holm, mean_over_seeds, paired, welch

__all__ = ["REFERENCES", "Analysis", "EarlyStop", "VariantResult", "Verdict", "analyse", "at_equal_pass"]

PASS, NSCR = "pass_at_1", "nscr"
REFERENCES = (PLAIN, "placebo", "low_lr")
"""A variant must be above each of them: plain, a bonus without meaning, and less learning."""


@dataclass(frozen=True, slots=True)
class EarlyStop:
    """Plain, stopped where it first had the variant's pass@1: over the seeds where it ever had it."""

    estimates: Mapping[str, Estimate]
    differences: Mapping[str, Difference]
    """The variant less that."""


@dataclass(frozen=True, slots=True)
class Verdict:
    word: str
    """`better`, `no`, `open` (what was not run leaves it open), or `control`."""
    why: str
    pass_no_worse: bool
    """The one-sided 95 % lower bound of pass@1 less plain's is above -margin."""
    escapes: bool
    """The mean NSCR is 0 or more, at a pass@1 no worse."""
    escapes_surely: bool
    """So is the lower bound of its interval."""


@dataclass(frozen=True, slots=True)
class VariantResult:
    name: str
    is_control: bool
    seeds: tuple[int, ...]
    estimates: Mapping[str, Estimate]
    against: Mapping[str, Mapping[str, Difference]]
    """Reference -> metric -> the variant less the reference."""
    holm_p: Mapping[str, float]
    """Metric -> the p against plain, corrected over the variants that are no controls; NaN for a control."""
    early_stop: EarlyStop | None
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Analysis:
    variants: tuple[VariantResult, ...]
    margin: float
    warnings: tuple[str, ...]


def analyse(runs: Sequence[Measured], margin: float = 0.01) -> Analysis:
    """Plain first, then in the order of the runs."""
    groups: dict[str, list[Measured]] = {PLAIN: []}
    for run in runs:
        groups.setdefault(run.variant, []).append(run)
    if not groups[PLAIN]:
        raise ConfigError("no run of plain has ended: there is nothing to compare with")
    against = {name: _against(name, groups) for name in groups}
    tested = [name for name in groups if name not in CONTROLS]
    metrics = list(groups[PLAIN][0].last)
    corrected = {m: dict(zip(tested, holm([against[v][PLAIN][m].p for v in tested]), strict=True)) for m in metrics}
    results = []
    for name, members in groups.items():
        estimates = {metric: mean_over_seeds([run.last[metric] for run in members]) for metric in metrics}
        holm_p = {metric: corrected[metric].get(name, math.nan) for metric in metrics}
        verdict = judge(name, estimates, against[name], holm_p[NSCR], margin)
        early = None if name == PLAIN else _early_stop(members, groups[PLAIN])
        seeds = tuple(run.seed for run in members)
        results.append(VariantResult(name, name in CONTROLS, seeds, estimates, against[name], holm_p, early, verdict))
    return Analysis(tuple(results), margin, tuple(_warnings(groups)))


def judge(
    name: str,
    estimates: Mapping[str, Estimate],
    against: Mapping[str, Mapping[str, Difference]],
    holm_p: float,
    margin: float,
) -> Verdict:
    """Better: NSCR above plain (Holm), above placebo and above low_lr (each), and pass@1 no worse than plain's."""
    nscr = estimates[NSCR]
    no_worse = name == PLAIN or against[PLAIN][PASS].floor > -margin
    escapes = nscr.value >= 0 and no_worse
    flags = (no_worse, escapes, escapes and nscr.low >= 0)
    if name in CONTROLS:
        return Verdict("control", "", *flags)
    if against[PLAIN][NSCR].method == "none":
        return Verdict("open", "fewer than 2 seeds: no test", *flags)
    lacking = _lacking(against, holm_p, no_worse, margin)
    if lacking:
        return Verdict("no", "; ".join(lacking), *flags)
    untested = [r for r in REFERENCES if r not in against or against[r][NSCR].method == "none"]
    if untested:
        return Verdict("open", f"above plain, but not tested against {' and '.join(untested)}", *flags)
    return Verdict("better", "", *flags)


def at_equal_pass(run: Measured, target: float) -> dict[str, float] | None:
    """The run's metrics where its pass@1 first was `target`, linear between measurements; None if it never was."""
    for before, after in zip(run.series, run.series[1:], strict=False):
        start, end = before[PASS], after[PASS]
        if min(start, end) <= target <= max(start, end):
            part = (target - start) / (end - start) if end != start else 1.0
            return {metric: before[metric] + part * (after[metric] - before[metric]) for metric in before}
    return None


def _against(name: str, groups: Mapping[str, Sequence[Measured]]) -> dict[str, dict[str, Difference]]:
    return {
        reference: _differences(groups[name], groups[reference])
        for reference in REFERENCES
        if reference in groups and reference != name
    }


def _differences(ours: Sequence[Measured], theirs: Sequence[Measured]) -> dict[str, Difference]:
    ours, theirs = (sorted(side, key=lambda run: run.seed) for side in (ours, theirs))
    test = paired if [run.seed for run in ours] == [run.seed for run in theirs] else welch
    return {m: test([run.last[m] for run in ours], [run.last[m] for run in theirs]) for m in ours[0].last}


def _early_stop(members: Sequence[Measured], plain: Sequence[Measured]) -> EarlyStop | None:
    by_seed = {run.seed: run for run in plain}
    pairs = [
        (run.last, stopped)
        for run in members
        if run.seed in by_seed and (stopped := at_equal_pass(by_seed[run.seed], run.last[PASS])) is not None
    ]
    if not pairs:
        return None
    metrics = list(pairs[0][0])
    return EarlyStop(
        {m: mean_over_seeds([stopped[m] for _, stopped in pairs]) for m in metrics},
        {m: paired([ours[m] for ours, _ in pairs], [stopped[m] for _, stopped in pairs]) for m in metrics},
    )


def _lacking(
    against: Mapping[str, Mapping[str, Difference]], holm_p: float, no_worse: bool, margin: float
) -> list[str]:
    """What stands against `better`, in words."""
    found = []
    if not (against[PLAIN][NSCR].estimate.value > 0 and holm_p < ALPHA):
        found.append("NSCR not above plain")
    for reference in REFERENCES[1:]:
        difference = against.get(reference, {}).get(NSCR)
        if difference is not None and difference.method != "none" and not difference.is_above:
            found.append(f"NSCR not above {reference}")
    if not no_worse:
        found.append(f"pass@1 may be worse than plain by more than {margin:g}")
    return found


def _warnings(groups: Mapping[str, Sequence[Measured]]) -> list[str]:
    found = []
    absent = [reference for reference in REFERENCES if reference not in groups]
    if absent:
        found.append(f"{' and '.join(absent)} not in this sweep: no variant can be called better without them")
    if any(len(members) < 2 for members in groups.values()):
        found.append("a variant with a single seed has no interval and no p-value: run 2 seeds at least, better 5")
    same = [name for name, members in groups.items() if name != PLAIN and _are_same(members, groups[PLAIN])]
    if same:
        found.append(f"{' and '.join(same)} gave exactly plain's numbers: its settings change nothing here")
    lasts = {name: sorted({run.steps[-1] for run in members}) for name, members in groups.items()}
    if len({tuple(steps) for steps in lasts.values()}) > 1 or any(len(steps) > 1 for steps in lasts.values()):
        told = ", ".join(f"{name} {'/'.join(map(str, steps))}" for name, steps in lasts.items())
        found.append(f"the last measured steps differ; see that the rollouts behind them do not: {told}")
    return found


def _are_same(ours: Sequence[Measured], plain: Sequence[Measured]) -> bool:
    by_seed = {run.seed: run for run in plain}
    shared = [run for run in ours if run.seed in by_seed]
    return bool(shared) and all(repr(run.last) == repr(by_seed[run.seed].last) for run in shared)
