"""The report of a planned sweep: the runs' exact probabilities read, judged by the plan, as tables and a record."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from offleash.eval.errors import ConfigError
from offleash.eval.report.numbers import DASH, estimate, share
from offleash.eval.report.tables import Table
from offleash.eval.stats.exact_support import EPSILONS
from offleash.train.variants.exact import ExactPath, check_same_base, outcomes, read_path
from offleash.train.variants.exact_figures import LEASH, floors_figure, leash_figure
from offleash.train.variants.hparams import write_hparams
from offleash.train.variants.inertness import ANSWER_AWARE, REWARD_ONLY, Departure, departure_of
from offleash.train.variants.origins import missing_words
from offleash.train.variants.overlays import PLAIN
from offleash.train.variants.plans import CLAIM_SEEDS, CONFIRM, RULE, Plan
from offleash.train.variants.report import FORMAT, Drawing, Report, check_ended, traced, write_report
from offleash.train.variants.results import METRICS, Measured, Sweep, read_sweep
from offleash.train.variants.runs import Run, asked_of, run_name
from offleash.train.variants.verdicts import SCREENED, ArmResult, Judged, Trial, judge


def write_planned(
    plan: Plan, versions: Sequence[Mapping[str, Any]], runs: Sequence[Run], out: Path, width: int = 118
) -> str:
    """The report of the runs that have ended, written to `out` together with the HParams page; returned as text."""
    ended = check_ended(runs)
    sweep = read_sweep(runs)
    paths = {run.name: read_path(run.folder) for run in ended}
    _check_last(sweep, paths)
    check_same_base(paths)
    judged = judge(plan, trials_of(runs, paths))
    written = write_report(traced(planned(judged, versions, sweep, paths), runs, out, sweep), out, width)
    settings = {run.overlay.name: asked_of(run) for run in ended}
    exact = {"exact_pass_at_1": "pass@1 (exact)", "exact_nscr": f"NSCR({plan.eps:g}) (exact)"}
    titles = exact | {key: f"{title} (sampled)" for key, title in METRICS.items()}
    write_hparams(out, _with_exact(sweep.runs, judged), settings, _trial_words(judged), titles)
    return written


def _check_last(sweep: Sweep, paths: Mapping[str, ExactPath]) -> None:
    """Raises ConfigError if the exact probabilities of a run end before its measurements do."""
    for run in sweep.runs:
        name = run_name(run.variant, run.seed)
        if (last := paths[name].steps[-1]) != run.steps[-1]:
            raise ConfigError(
                f"{name} was measured at step {run.steps[-1]}, but its exact probabilities end at step {last}: remove "
                "its folder to train the run again"
            )


def _with_exact(runs: Sequence[Measured], judged: Judged) -> list[Measured]:
    """The runs with what they are judged by among their metrics."""
    e = EPSILONS.index(judged.plan.eps)
    known = {run_name(trial.name, seed): run for trial in judged.trials for seed, run in trial.runs.items()}
    found = []
    for run in runs:
        of = known[run_name(run.variant, run.seed)]
        exact = dict(zip(of.steps, zip(of.pass_tg[:, 0], of.nscr_tge[:, 0, e], strict=True), strict=True))
        values = [exact.get(step, (math.nan, math.nan)) for step in run.steps]
        series = tuple(
            {"exact_pass_at_1": float(passed), "exact_nscr": float(nscr), **sampled}
            for (passed, nscr), sampled in zip(values, run.series, strict=True)
        )
        found.append(replace(run, series=series))
    return found


def _trial_words(judged: Judged) -> dict[str, str]:
    """Trial -> what was judged of its arm; of an arm only the chosen trial is."""
    chosen = {arm.trial.name: arm.word for arm in judged.arms}
    return {trial.name: chosen.get(trial.name, "not chosen") for trial in judged.trials}


def trials_of(runs: Sequence[Run], paths: Mapping[str, ExactPath]) -> list[Trial]:
    """Every trial of the plan, with those of its runs that have ended."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(run.overlay.name, []).append(run)
    return [
        Trial(
            name,
            of[0].overlay.arm,
            of[0].overlay.is_control,
            {run.seed: outcomes(paths[run.name]) for run in of if run.name in paths},
        )
        for name, of in groups.items()
    ]


def planned(
    judged: Judged, versions: Sequence[Mapping[str, Any]], sweep: Sweep, paths: Mapping[str, ExactPath]
) -> Report:
    """`paths`: by the name of the run."""
    plan, base = judged.plan, next(iter(paths.values()))
    departures = _departures(judged, paths)
    drawings = [
        Drawing("leash", leash_figure(judged, base), f"pass@1 against exact NSCR({plan.eps:g}). Curve: {LEASH}."),
        Drawing("floors", floors_figure(judged), "Exact NSCR at every floor eps. Dashes: the same at plain's pass@1."),
    ]
    return Report(
        title=f"Planned sweep ({plan.stage}): {plan.recipe}",
        warnings=missing_words(sweep.missing),
        verdict=_verdict(judged),
        summary=_summary(judged, versions),
        drawings=drawings,
        tables=_tables(judged, sweep, departures),
        notes=_notes(judged, sweep),
        arms=[_name(arm) for arm in judged.arms],
        record=record(judged, versions, sweep, departures),
    )


def record(
    judged: Judged, versions: Sequence[Mapping[str, Any]], sweep: Sweep, departures: Mapping[str, Departure]
) -> dict[str, Any]:
    """{"format", "plans": [every version with its sha256], "eps", "confidence", "missing", "arms": [ARM],
    "inertness": {arm: offleash.train.variants.inertness.Departure}}

    ARM: arm, trial (the chosen one), control, seeds, word, better, no_worse (null if not judged), above (controls),
    "pass_at_1", "nscr", "line", "gap" (each of the last three {eps: ESTIMATE}), "to_plain_line", "pass_difference",
    "gap_difference", "differences" {control: ESTIMATE}, "short" {control: by how much pass@1 is never reached},
    reached, problems_gained, problems_lost, rollouts, base_samples, seconds, sampled_nscr (the last four null if
    unknown). ESTIMATE: value, low, high, n (seeds). "origins" as in `offleash.train.variants.report`.
    """
    return {
        "format": FORMAT,
        "plans": versions,
        "eps": judged.plan.eps,
        "confidence": judged.confidence,
        "missing": sweep.missing,
        "arms": [_arm_record(arm, _measured(arm.trial, sweep)) for arm in judged.arms],
        "inertness": {arm: found._asdict() for arm, found in departures.items()},
    }


def _arm_record(arm: ArmResult, runs: Sequence[Measured]) -> dict[str, Any]:
    return {
        "arm": arm.trial.arm,
        "trial": arm.trial.name,
        "control": arm.trial.is_control,
        "seeds": arm.trial.seeds,
        "word": arm.word,
        "better": arm.is_better,
        "no_worse": arm.no_worse,
        "above": arm.above,
        "pass_at_1": arm.passed,
        **{
            key: {f"{eps:g}": value for eps, value in zip(EPSILONS, of, strict=True)}
            for key, of in (("nscr", arm.nscr_e), ("line", arm.line_e), ("gap", arm.gap_e))
        },
        "to_plain_line": arm.to_plain_line,
        "pass_difference": arm.pass_difference,
        "gap_difference": arm.gap_difference,
        "differences": arm.differences,
        "short": arm.short,
        "reached": arm.reached,
        "problems_gained": arm.gained,
        "problems_lost": arm.lost,
        "rollouts": _mean([run.rollouts for run in runs]),
        "base_samples": _mean([run.base_samples for run in runs]),
        "seconds": _mean([run.seconds for run in runs]),
        "sampled_nscr": _mean([run.last["nscr"] for run in runs]),
    }


def _summary(judged: Judged, versions: Sequence[Mapping[str, Any]]) -> list[str]:
    plan, eps = judged.plan, f"{judged.plan.eps:g}"
    hashes = " -> ".join(f"{version['sha256'][:12]} ({version['since']})" for version in versions)
    claims = [] if _only_screened(judged) else [f"{arm.trial.name}: {_claim(arm, eps)}." for arm in judged.variants]
    return [*claims, f"Plan {hashes}. Outcome: exact NSCR({eps}), margin {plan.margin:g}."]


def _verdict(judged: Judged) -> str:
    """The one sentence that the report opens with."""
    variants = judged.variants
    if _only_screened(judged):
        best = ", ".join(arm.trial.name for arm in variants[:4]) or DASH
        confirms = judged.plan.stage == CONFIRM
        why = f"fewer than {CLAIM_SEEDS} seeds: no claims" if confirms else "a screen makes no claims"
        return f"Screened ({why}). The first by the plan's rule ({RULE}): {best}."
    better = [arm.trial.name for arm in variants if arm.is_better]
    named = f": {', '.join(better)}" if better else ""
    return f"{len(better)} of {len(variants)} variants are better than plain and every control{named}."


def _only_screened(judged: Judged) -> bool:
    return all(arm.word == SCREENED for arm in judged.arms)


def _claim(arm: ArmResult, eps: str) -> str:
    if arm.word == SCREENED:
        return f"screened, fewer than {CLAIM_SEEDS} seeds"
    passed = "pass@1 no worse than plain's" if arm.no_worse else "pass@1 not shown to be no worse than plain's"
    above = ", ".join(f"{name} (at its highest pass@1)" if name in arm.short else name for name in arm.above)
    above = above or "nothing"
    better = "better than plain and every control; " if arm.is_better else ""
    return f"{arm.word}; {better}{passed}; at equal pass@1 NSCR({eps}) above {above}"


def _departures(judged: Judged, paths: Mapping[str, ExactPath]) -> dict[str, Departure]:
    """Of every arm but plain; {} in a screen."""
    if judged.plan.stage != CONFIRM:
        return {}
    chosen = {arm.trial.arm: arm.trial for arm in judged.arms}
    of = {arm: {s: paths[run_name(trial.name, s)] for s in trial.seeds} for arm, trial in chosen.items()}
    return {arm: departure_of(arm, runs, of[PLAIN]) for arm, runs in of.items() if arm != PLAIN}


def _tables(judged: Judged, sweep: Sweep, departures: Mapping[str, Departure]) -> list[Table]:
    found = [_arms(judged), _floors(judged), _differences(judged), _samples(judged, sweep)]
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
            _name(arm),
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


def _floors(judged: Judged) -> Table:
    header = ("", *(f"NSCR({eps:g})" for eps in EPSILONS), *(f"gap({eps:g})" for eps in EPSILONS))
    rows = [
        (_name(arm), *(share(x.value) for x in arm.nscr_e), *(share(x.value) for x in arm.gap_e)) for arm in judged.arms
    ]
    note = "Only the plan's floor is judged. gap: NSCR minus that of the leash line at this pass@1."
    return Table("floors", "Every floor", header, tuple(rows), note)


def _differences(judged: Judged) -> Table:
    controls = [arm.trial.arm for arm in judged.arms if arm.trial.is_control]
    rows = [
        (
            _name(arm),
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
        runs = _measured(arm.trial, sweep)
        drawn, base = _mean([run.rollouts for run in runs]), _mean([run.base_samples for run in runs])
        total = None if drawn is None or base is None else drawn + base
        counts = [DASH if value is None else f"{value:,.0f}" for value in (drawn, base, total)]
        seconds = _mean([run.seconds for run in runs])
        sampled = _mean([run.last["nscr"] for run in runs])
        cells = (DASH if seconds is None else f"{seconds:,.0f}", DASH if sampled is None else share(sampled))
        rows.append((_name(arm), *counts, *cells))
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
            estimate(found.at_same_p),
            found.word_at_same_p or DASH,
            estimate(found.entropy),
            estimate(found.entropy_from_base),
            found.entropy_word or DASH,
            estimate(found.forward_kl),
        )
        for arm, found in departures.items()
    ]
    header = (
        *("", "advantage sees", "problems", "departure from plain's path", "prediction", "departure at the same P"),
        *("prediction", "entropy − plain", "entropy − base", "that it falls", "forward KL − plain"),
    )
    note = (
        "Of the distribution over correct answers given correctness, at equal P of a problem (recipes/variants/"
        "PREDICTIONS.md). Departure: 0 as plain's seeds among themselves, 1 as far again as plain moved; first as it "
        "was written down, then with all distances at the same P. Forward KL of the base over correct answers at equal "
        "pass@1. 95 % intervals over seeds, each by itself."
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


def _notes(judged: Judged, sweep: Sweep) -> tuple[str, ...]:
    plan = judged.plan
    problems = ", ".join(f"{key} {value}" for key, value in plan.problems.items())
    return (
        f"Problems: {problems}; {len(plan.seeds)} seeds; k = {sweep.k} for sampled numbers.",
        f"Means over seeds with {100 * judged.confidence:.4g} % intervals for other seeds and other problems: variance "
        "over seeds plus that of a jackknife over 20 groups of problems, Student's t."
        + (
            " In a confirmation each kind of interval holds for all variants together; that an arm is above one of "
            "several controls is not corrected for their number."
            if plan.stage == CONFIRM
            else ""
        ),
        "shrinks: NSCR's interval lies below 0. expands: a unit below the floor in the base is reached, NSCR is above "
        "0, and the gap's interval lies above 0. as good as reweighting: the gap's interval lies above minus the "
        "margin. keeps: NSCR's interval lies above minus the margin. undecided: none of these.",
        "no worse: the interval of pass@1 minus plain's lies above minus the margin. better: no worse than plain, and "
        f"NSCR above plain's and every control's at equal pass@1, each with {CLAIM_SEEDS} seeds or more.",
        f"screened: a screen, or fewer than {CLAIM_SEEDS} seeds; nothing is claimed.",
    )


def _name(arm: ArmResult) -> str:
    return f"{arm.trial.name} (control)" if arm.trial.is_control and arm.trial.arm != PLAIN else arm.trial.name


def _measured(trial: Trial, sweep: Sweep) -> list[Measured]:
    return [run for run in sweep.runs if run.variant == trial.name]


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None and math.isfinite(value)]
    return math.fsum(known) / len(known) if known else None
