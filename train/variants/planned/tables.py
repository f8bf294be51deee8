"""The tables of a planned sweep's report."""

import math
from collections.abc import Mapping, Sequence

from offleash.eval.report.numbers import DASH, estimate, share
from offleash.eval.report.tables import Table
from offleash.eval.stats.exact_support import EPSILONS
from offleash.train.variants.overlays import PLAIN
from offleash.train.variants.planned.figures import LEASH
from offleash.train.variants.planned.inertness import ANSWER_AWARE, REWARD_ONLY, Departure
from offleash.train.variants.planned.verdicts import ArmResult, Judged, Trial
from offleash.train.variants.plans import RULE
from offleash.train.variants.results import Measured, Sweep


def planned_tables(judged: Judged, sweep: Sweep, departures: Mapping[str, Departure]) -> list[Table]:
    found = [_arms(judged), _along(judged), _floors(judged), _differences(judged), _samples(judged, sweep)]
    if departures:
        found.append(_inertness(departures))
    if len(judged.trials) > len(judged.arms):
        found.append(_trials(judged))
    return found


def _arms(judged: Judged) -> Table:
    e, eps = EPSILONS.index(judged.plan.eps), f"{judged.plan.eps:g}"
    header = (
        *("", "verdict", "seeds", "pass@1", f"NSCR({eps})", "leash line", "gap to the line", "gap at plain's pass@1"),
        *("units reached", "problems gained", "problems lost"),
    )
    rows = [
        (
            name_of(arm),
            arm.word,
            str(len(arm.trial.seeds)),
            estimate(arm.passed),
            estimate(arm.nscr_e[e]),
            share(arm.line_e[e].value),
            estimate(arm.gap_e[e]),
            estimate(arm.to_plain_line),
            *(f"{value:.1f}" for value in (arm.reached, arm.gained, arm.lost)),
        )
        for arm in judged.arms
    ]
    note = f"Exact probabilities. Leash line: {LEASH}. The last three are means over seeds at this floor."
    return Table("arms", "Arms", header, tuple(rows), note)


def _along(judged: Judged) -> Table:
    """Where each arm's runs were at every measured step: what a smaller part of the same run would have cost."""
    steps = sorted({step for arm in judged.arms for step, *_ in arm.trial.along(judged.plan.eps)})
    rows = []
    for arm in judged.arms:
        at = {step: f"{share(passed)} / {share(nscr)}" for step, passed, nscr in arm.trial.along(judged.plan.eps)}
        rows.append((name_of(arm), *(at.get(step, DASH) for step in steps)))
    note = f"pass@1 / NSCR({judged.plan.eps:g}) at each measured step, means over seeds; step 0 is the base."
    return Table("along", "Along the run", ("", *(f"step {step}" for step in steps)), tuple(rows), note)


def _floors(judged: Judged) -> Table:
    header = ("", *(f"NSCR({eps:g})" for eps in EPSILONS), *(f"gap({eps:g})" for eps in EPSILONS))
    rows = [
        (name_of(arm), *(share(x.value) for x in arm.nscr_e), *(share(x.value) for x in arm.gap_e))
        for arm in judged.arms
    ]
    note = "Only the plan's floor is judged. gap: NSCR minus that of the leash line at this pass@1."
    return Table("floors", "Every floor", header, tuple(rows), note)


def _differences(judged: Judged) -> Table:
    controls = [arm.trial.arm for arm in judged.arms if arm.trial.is_control]
    rows = [
        (
            name_of(arm),
            DASH if arm.pass_difference is None else estimate(arm.pass_difference),
            DASH if arm.no_worse is None else "yes" if arm.no_worse else "not shown",
            DASH if arm.gap_difference is None else estimate(arm.gap_difference),
            *(_difference(arm, control) for control in controls),
        )
        for arm in judged.arms
    ]
    header = ("", "pass@1 − plain", "no worse", "gap − plain", *(f"NSCR − {control}" for control in controls))
    note = (
        "gap: NSCR minus that of the leash line at the run's own pass@1. NSCR against the control where its pass@1 "
        "first was the arm's (interpolated). †: the control never got there and stands at its highest pass@1, where "
        "it has lost less; the number is how much lower that is, on average over seeds."
    )
    return Table("differences", "Against plain and the controls at equal pass@1", header, tuple(rows), note)


def _difference(arm: ArmResult, control: str) -> str:
    if control not in arm.differences:
        return DASH
    mark = f" † {share(arm.short[control])}" if control in arm.short else ""
    return estimate(arm.differences[control]) + mark


def _samples(judged: Judged, sweep: Sweep) -> Table:
    rows = []
    for arm in judged.arms:
        runs = measured_of(arm.trial, sweep)
        drawn, base = mean_known([run.rollouts for run in runs]), mean_known([run.base_samples for run in runs])
        total = None if drawn is None or base is None else drawn + base
        counts = [DASH if value is None else f"{value:,.0f}" for value in (drawn, base, total)]
        seconds = mean_known([run.seconds for run in runs])
        sampled = mean_known([run.last["nscr"] for run in runs])
        cells = (DASH if seconds is None else f"{seconds:,.0f}", DASH if sampled is None else share(sampled))
        rows.append((name_of(arm), *counts, *cells))
    header = ("", "rollouts", "base samples", "total samples", "seconds", f"sampled NSCR@{sweep.k}")
    note = "Means over seeds. Seconds: of training steps by the wall clock of the machine, without measurements."
    return Table("samples", "Samples and compute", header, tuple(rows), note)


def _inertness(departures: Mapping[str, Departure]) -> Table:
    rows = [
        (
            arm,
            "rewards" if arm in REWARD_ONLY else "answers" if arm in ANSWER_AWARE else DASH,
            str(found.problems),
            estimate(found.departure),
            found.word or DASH,
            estimate(found.corrected),
            found.word_corrected or DASH,
            estimate(found.entropy),
            estimate(found.entropy_from_base),
            found.entropy_word or DASH,
            estimate(found.forward_kl),
        )
        for arm, found in departures.items()
    ]
    header = (
        *("", "advantage sees", "problems", "departure from plain's path", "prediction", "departure, corrected"),
        *("prediction", "entropy − plain", "entropy − base", "that it falls", "forward KL − plain"),
    )
    note = (
        "Of the distribution over correct answers given correctness, at equal P of a problem (recipes/variants/"
        "PREDICTIONS.md). Departure: 0 as plain's seeds among themselves, 1 as far again as plain moved; first as it "
        "was written down, then with all distances at the same P and without the scatter of either arm's seeds. "
        "Forward KL of the base over correct answers at equal pass@1. 95 % intervals over seeds, each by itself."
    )
    return Table("inertness", "Conditional inertness", header, tuple(rows), note)


def _trials(judged: Judged) -> Table:
    chosen = {arm.trial.name for arm in judged.arms}
    rows = []
    for trial in judged.trials:
        passed, nscr = trial.mean(judged.plan.eps)
        rows.append((trial.name, str(len(trial.seeds)), share(passed), share(nscr), "yes" * (trial.name in chosen)))
    header = ("", "seeds", "pass@1", f"NSCR({judged.plan.eps:g})", "chosen")
    note = (
        f"Rule: {RULE}. Among an arm's trials with a pass@1 of at least the chosen plain's minus the margin the one "
        "with the highest outcome, otherwise the one with the highest pass@1; of plain the highest pass@1."
    )
    return Table("trials", "Trials", header, tuple(rows), note)


def name_of(arm: ArmResult) -> str:
    return f"{arm.trial.name} (control)" if arm.trial.is_control and arm.trial.arm != PLAIN else arm.trial.name


def measured_of(trial: Trial, sweep: Sweep) -> list[Measured]:
    return [run for run in sweep.runs if run.variant == trial.name]


def mean_known(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None and math.isfinite(value)]
    return math.fsum(known) / len(known) if known else None
