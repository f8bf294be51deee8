"""Statistics of a sweep: metrics over seeds, differences from plain and from the controls, and a verdict per variant.

Pure functions of `Measured` runs. Intervals are over training seeds, on these probe problems and this base pool. Two
runs with the same seed share problems, order and sampling noise, so they are compared as a pair; if the seeds of two
variants differ, Welch's test is used.

`better` makes several claims at once, so its p-value is the largest of theirs (an intersection-union test: Berger 1982,
"Multiparameter hypothesis testing and acceptance sampling"), and Holm's correction is applied to these p-values: if no
variant is better, at most 5 % of sweeps call one better, whichever claim fails.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from offleash.eval.errors import ConfigError
from offleash.eval.report.numbers import share
from offleash.eval.stats.intervals import Estimate
from offleash.train.variants.overlays import CONTROLS, PLAIN
from offleash.train.variants.results import Measured, bounds
from offleash.train.variants.significance import ALPHA, Difference, holm, mean_over_seeds, paired, welch

PASS, NSCR = "pass_at_1", "nscr"
REFERENCES = (PLAIN, "placebo", "low_lr")
"""A variant must be above each of them: plain, a meaningless bonus, and a lower learning rate."""
SLACK = 0.05
"""Relative difference in rollouts from plain above which a warning is given. Dynamic sampling overshoots a little."""


@dataclass(frozen=True, slots=True)
class EarlyStop:
    """Plain stopped at the variant's pass@1 (see `at_equal_pass`), over the seeds that both have."""

    estimates: Mapping[str, Estimate]
    differences: Mapping[str, Difference]
    """The variant minus that."""


@dataclass(frozen=True, slots=True)
class Verdict:
    word: str
    """`better`, `no`, `open` (a necessary run is missing), or `control`."""
    why: str
    pass_no_worse: bool
    """The one-sided 95 % lower bound of the difference in pass@1 to plain is above -margin."""
    expands: bool
    """The mean NSCR is at least 0, and pass@1 is no worse."""
    expands_significantly: bool
    """The lower bounds of NSCR and of `VariantResult.since_start` are at least 0 as well."""


@dataclass(frozen=True, slots=True)
class VariantResult:
    name: str
    is_control: bool
    seeds: tuple[int, ...]
    estimates: Mapping[str, Estimate]
    since_start: Estimate
    """NSCR minus that of step 0 of the same run, which removes the shift that the base pool causes in both."""
    against: Mapping[str, Mapping[str, Difference]]
    """Reference -> metric -> the variant minus the reference."""
    holm_p: Mapping[str, float]
    """Metric -> p-value against plain, corrected over the variants that are not controls; NaN for a control."""
    better_p: float
    """p-value of the verdict `better`, corrected likewise; NaN for a control and if a test is missing."""
    early_stop: EarlyStop | None
    own_controls: tuple[str, ...]
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Analysis:
    variants: tuple[VariantResult, ...]
    margin: float
    family: int
    """Number of variants that the correction counts."""
    warnings: tuple[str, ...]


def analyze(
    runs: Sequence[Measured], margin: float = 0.01, tried: Collection[str] = (), warnings: Sequence[str] = ()
) -> Analysis:
    """Plain first, then in the order of the runs.

    `tried` names the variants that were started or requested: those without results count in the correction too.
    `warnings` come before those of the analysis.
    """
    groups: dict[str, list[Measured]] = {PLAIN: []}
    for run in runs:
        groups.setdefault(run.variant, []).append(run)
    if not groups[PLAIN]:
        raise ConfigError("no run of plain has ended: nothing to compare with")
    against = {name: _against(name, groups) for name in groups}
    family = [name for name in dict.fromkeys([*groups, *tried]) if name not in CONTROLS]
    metrics = list(groups[PLAIN][0].last)
    corrected = {
        m: _corrected({v: against[v][PLAIN][m].p if v in groups else math.nan for v in family}) for m in metrics
    }
    better = _corrected({v: _claim_p(against[v], margin) if v in groups else math.nan for v in family})
    results = []
    for name, members in groups.items():
        estimates = {m: mean_over_seeds([r.last[m] for r in members], bounds(m)) for m in metrics}
        since_start, better_p = _since_start(members), better.get(name, math.nan)
        results.append(
            VariantResult(
                name=name,
                is_control=name in CONTROLS,
                seeds=tuple(run.seed for run in members),
                estimates=estimates,
                since_start=since_start,
                against=against[name],
                holm_p={metric: corrected[metric].get(name, math.nan) for metric in metrics},
                better_p=better_p,
                early_stop=None if name == PLAIN else _early_stop(members, groups[PLAIN]),
                own_controls=members[0].controls,
                verdict=_judge(members, estimates[NSCR], since_start, against[name], better_p, len(family), margin),
            )
        )
    return Analysis(tuple(results), margin, len(family), (*warnings, *_warnings(groups)))


def _references(members: Sequence[Measured]) -> tuple[str, ...]:
    """What a variant is compared with, if it was run."""
    return (*REFERENCES, *members[0].controls)


def at_equal_pass(run: Measured, target: float) -> dict[str, float]:
    """The run's metrics where its pass@1 was `target`, interpolated linearly; at its end if it never reached it.

    pass@1 is noisy, and the first crossing of a noisy curve comes too early. So the curve is first made monotone by
    isotonic regression, and the last point of a flat piece is taken.
    """
    fit = rising([metrics[PASS] for metrics in run.series])
    at = max((i for i, value in enumerate(fit) if value <= target), default=0)
    if at == len(fit) - 1 or target <= fit[at]:
        return dict(run.series[at])
    before, after = run.series[at], run.series[at + 1]
    part = (target - fit[at]) / (fit[at + 1] - fit[at])
    return {metric: before[metric] + part * (after[metric] - before[metric]) for metric in before}


def _judge(
    members: Sequence[Measured],
    nscr: Estimate,
    since_start: Estimate,
    against: Mapping[str, Mapping[str, Difference]],
    better_p: float,
    family: int,
    margin: float,
) -> Verdict:
    name = members[0].variant
    no_worse = name == PLAIN or against[PLAIN][PASS].lower_bound > -margin
    expands = nscr.value >= 0 and no_worse
    flags = (no_worse, expands, expands and nscr.low >= 0 and since_start.low >= 0)
    if name in CONTROLS:
        return Verdict("control", "", *flags)
    if against[PLAIN][NSCR].method == "none":
        return Verdict("open", "fewer than 2 seeds, no test", *flags)
    not_above = [reference for reference, d in _tested(against).items() if not d.is_above]
    lacking = [f"NSCR not above {', '.join(not_above)}"] if not_above else []
    if not no_worse:
        lacking.append(f"pass@1 may be worse than plain by more than {margin:g}")
    if not lacking and not better_p < ALPHA:
        lacking.append(f"p = {share(better_p)} after correction for {family} variants")
    if lacking:
        return Verdict("no", "; ".join(lacking), *flags)
    if untested := [reference for reference in _references(members) if reference not in _tested(against)]:
        return Verdict("open", f"above plain, but not tested against {' and '.join(untested)}", *flags)
    return Verdict("better", "", *flags)


def _claim_p(against: Mapping[str, Mapping[str, Difference]], margin: float) -> float:
    """p-value of "NSCR above each reference and pass@1 no worse than plain"; NaN if one of them has no p-value."""
    ps = [difference.p_positive for difference in _tested(against).values()]
    ps.append(against[PLAIN][PASS].p_above(-margin))
    return math.nan if any(map(math.isnan, ps)) else max(ps)


def _tested(against: Mapping[str, Mapping[str, Difference]]) -> dict[str, Difference]:
    """Reference -> difference in NSCR, if there are enough seeds for a test."""
    return {reference: of[NSCR] for reference, of in against.items() if of[NSCR].method != "none"}


def _corrected(ps: Mapping[str, float]) -> dict[str, float]:
    return dict(zip(ps, holm(list(ps.values())), strict=True))


def _since_start(members: Sequence[Measured]) -> Estimate:
    """NSCR minus that of step 0, which is sampled anew for each seed; NaN if step 0 was not measured."""
    return mean_over_seeds([run.last[NSCR] - run.first[NSCR] if run.first else math.nan for run in members])


def _against(name: str, groups: Mapping[str, Sequence[Measured]]) -> dict[str, dict[str, Difference]]:
    return {
        reference: _differences(groups[name], groups[reference])
        for reference in _references(groups[name])
        if reference in groups and reference != name
    }


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


def rising(values: Sequence[float]) -> list[float]:
    """The closest curve that never falls, by least squares (isotonic regression)."""
    from scipy.optimize import isotonic_regression

    fitted: list[float] = isotonic_regression(values).x.tolist()
    return fitted


def _warnings(groups: Mapping[str, Sequence[Measured]]) -> list[str]:
    found = []
    if absent := [reference for reference in REFERENCES if reference not in groups]:
        found.append(f"{' and '.join(absent)} not in this sweep: no variant can be called better without it")
    for name, members in groups.items():
        found += [
            f"{name} was not compared with {control}, the control for its other changes"
            for control in members[0].controls
            if control not in groups
        ]
    if any(len(members) < 2 for members in groups.values()):
        found.append("a variant with a single seed has no interval and no p-value: run at least 2 seeds, preferably 5")
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
