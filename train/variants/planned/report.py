"""The report of a planned sweep: the runs' exact probabilities read, judged by the plan, as tables and a record."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from offleash.eval.errors import ConfigError
from offleash.eval.report.numbers import DASH
from offleash.eval.stats.exact_support import EPSILONS
from offleash.train.variants.hparams import write_hparams
from offleash.train.variants.origins import missing_words
from offleash.train.variants.overlays import PLAIN
from offleash.train.variants.planned.exact import ExactPath, check_same_base, outcomes, read_path
from offleash.train.variants.planned.figures import LEASH, floors_figure, leash_figure
from offleash.train.variants.planned.inertness import Departure, departure_of
from offleash.train.variants.planned.tables import mean_known, measured_of, name_of, planned_tables
from offleash.train.variants.planned.verdicts import SCREENED, ArmResult, Judged, Trial, judge
from offleash.train.variants.plans import CLAIM_SEEDS, CONFIRM, RULE, Plan
from offleash.train.variants.report import FORMAT, Drawing, Report, check_ended, traced, write_report
from offleash.train.variants.results import METRICS, Measured, Sweep, read_sweep
from offleash.train.variants.runs import Run, asked_of, run_name


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
        tables=planned_tables(judged, sweep, departures),
        notes=_notes(judged, sweep),
        arms=[name_of(arm) for arm in judged.arms],
        record=record(judged, versions, sweep, departures),
    )


def record(
    judged: Judged, versions: Sequence[Mapping[str, Any]], sweep: Sweep, departures: Mapping[str, Departure]
) -> dict[str, Any]:
    """{"format", "plans": [every version with its sha256], "eps", "confidence", "missing", "arms": [ARM],
    "inertness": {arm: offleash.train.variants.inertness.Departure}}

    ARM: arm, trial (the chosen one), control, seeds, word, better, no_worse (null if not judged), above (controls),
    "along" [[step, mean pass@1, mean NSCR], ...], "pass_at_1", "nscr", "line", "gap" (each of the last three {eps:
    ESTIMATE}), "to_plain_line", "pass_difference",
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
        "arms": [_arm_record(arm, measured_of(arm.trial, sweep), judged.plan.eps) for arm in judged.arms],
        "inertness": {arm: found._asdict() for arm, found in departures.items()},
    }


def _arm_record(arm: ArmResult, runs: Sequence[Measured], eps: float) -> dict[str, Any]:
    return {
        "arm": arm.trial.arm,
        "trial": arm.trial.name,
        "control": arm.trial.is_control,
        "seeds": arm.trial.seeds,
        "word": arm.word,
        "better": arm.is_better,
        "no_worse": arm.no_worse,
        "above": arm.above,
        "along": arm.trial.along(eps),
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
        "rollouts": mean_known([run.rollouts for run in runs]),
        "base_samples": mean_known([run.base_samples for run in runs]),
        "seconds": mean_known([run.seconds for run in runs]),
        "sampled_nscr": mean_known([run.last["nscr"] for run in runs]),
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
