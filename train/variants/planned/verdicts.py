"""The analysis of a planned sweep: each arm's chosen trial, its exact outcomes, and what may be said about it.

Only what the plan fixed is judged: NSCR at its floor eps, by exact probabilities, against plain and every control at
equal pass@1 and against the leash line (the KL-optimal reweighting of the base at this pass@1). Intervals hold for
other seeds and other problems (`twoway`), and in a confirmation for all of its m variants together (Bonferroni:
confidence 1 - .05 / m).

- word: of `eval.stats.leash.verdict`, by NSCR and its distance to the line: shrinks, keeps, as good as reweighting,
  expands, undecided.
- no worse: pass@1 minus plain's lies above minus the margin.
- above a control: NSCR minus that of the control where the control's pass@1 first was the arm's lies above 0. A control
  that never got there stands at its highest pass@1, where it has lost less: that is against the arm.
- better: no worse than plain, and above plain and every control of the plan, each with CLAIM_SEEDS seeds.

A screen, and whatever has fewer than CLAIM_SEEDS seeds, is called `screened`, and none of this is said.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from offleash.eval.errors import ConfigError
from offleash.eval.stats.exact_support import EPSILONS
from offleash.eval.stats.intervals import Estimate
from offleash.eval.stats.leash.against import AgainstLine
from offleash.eval.stats.leash.verdict import verdict
from offleash.train.variants.equal_pass import first_reached
from offleash.train.variants.overlays import PLAIN
from offleash.train.variants.planned.exact import ExactRun
from offleash.train.variants.planned.twoway import two_way
from offleash.train.variants.plans import CLAIM_SEEDS, CONFIRM, EQUAL_SAMPLES, Plan
from offleash.train.variants.significance import ALPHA, CONFIDENCE

Floats = NDArray[np.float64]

SCREENED, UNDECIDED = "screened", "undecided"
SHORT = 0.005
"""A control whose highest pass@1 is lower than the arm's by this or more, on average, never got there."""


@dataclass(frozen=True, slots=True)
class Trial:
    """The runs of one setting of an arm, by seed."""

    name: str
    arm: str
    is_control: bool
    runs: Mapping[int, ExactRun]

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(sorted(self.runs))

    def mean(self, eps: float) -> tuple[float, float]:
        """pass@1 and NSCR(eps) at the end, over seeds."""
        e = EPSILONS.index(eps)
        ends = [(run.pass_tg[-1, 0], run.nscr_tge[-1, 0, e]) for run in self.runs.values()]
        passed, nscr = np.mean(ends, axis=0)
        return float(passed), float(nscr)

    def along(self, eps: float) -> list[tuple[int, float, float]]:
        """Step, pass@1 and NSCR(eps) at each measured step that all seeds have, means over seeds."""
        e = EPSILONS.index(eps)
        at = []
        for run in self.runs.values():
            values = zip(run.pass_tg[:, 0], run.nscr_tge[:, 0, e], strict=True)
            at.append(dict(zip(run.steps, values, strict=True)))
        shared = sorted(set.intersection(*(set(one) for one in at)))
        means = [np.mean([one[step] for one in at], axis=0) for step in shared]
        return [(step, float(passed), float(nscr)) for step, (passed, nscr) in zip(shared, means, strict=True)]


@dataclass(frozen=True, slots=True)
class ArmResult:
    trial: Trial
    """The chosen one."""
    passed: Estimate
    nscr_e: tuple[Estimate, ...]
    line_e: tuple[Estimate, ...]
    """NSCR of the leash line at this pass@1."""
    gap_e: tuple[Estimate, ...]
    """NSCR minus that."""
    reached: float
    """Units reached at the floor that the base has not, mean over seeds."""
    gained: float
    """Problems, likewise."""
    lost: float
    to_plain_line: Estimate
    """NSCR at the floor minus that of the leash line at plain's pass@1."""
    pass_difference: Estimate | None
    """To plain; None for plain itself."""
    gap_difference: Estimate | None
    """The gap to the line at the floor minus plain's; None for plain itself."""
    differences: Mapping[str, Estimate]
    """Control -> NSCR minus the control's at equal pass@1."""
    short: Mapping[str, float]
    """Control -> by how much its highest pass@1 is below the arm's, mean over seeds; only from SHORT on."""
    needed: tuple[str, ...]
    """The controls of the plan that it has to be above."""
    word: str
    no_worse: bool | None
    """None where it is not judged."""
    above: tuple[str, ...]
    """The controls that it is above."""

    @property
    def is_better(self) -> bool:
        return bool(self.no_worse) and bool(self.needed) and set(self.above) >= set(self.needed)


@dataclass(frozen=True, slots=True)
class Judged:
    """Plain first, then controls, then variants from the best to the worst by the plan's rule."""

    plan: Plan
    arms: tuple[ArmResult, ...]
    confidence: float
    trials: tuple[Trial, ...]
    """All of them."""

    @property
    def variants(self) -> tuple[ArmResult, ...]:
        return tuple(arm for arm in self.arms if not arm.trial.is_control)


def judge(plan: Plan, trials: Sequence[Trial]) -> Judged:
    """`trials`: all of the plan, also those of which no run has ended. Raises ConfigError if plain is one of these."""
    known = [trial for trial in trials if trial.runs]
    arms: dict[str, list[Trial]] = {}
    for trial in known:
        arms.setdefault(trial.arm, []).append(trial)
    if PLAIN not in arms:
        raise ConfigError("no run of plain has ended: nothing to compare with")
    plain = choose(plan, arms[PLAIN], None)
    chosen = {PLAIN: plain, **{arm: choose(plan, of, plain) for arm, of in arms.items() if arm != PLAIN}}
    confidence = 1 - ALPHA / max(1, len(plan.variants)) if plan.stage == CONFIRM else CONFIDENCE
    controls = {arm: trial for arm, trial in chosen.items() if trial.is_control}
    variants = [trial for trial in chosen.values() if not trial.is_control]
    ordered = [*controls.values(), *sorted(variants, key=lambda trial: rank(plan, trial, plain), reverse=True)]
    needed = dict.fromkeys(trial.arm for trial in trials if trial.is_control)
    results = tuple(_result(plan, trial, controls, needed, confidence) for trial in ordered)
    return Judged(plan, results, confidence, tuple(known))


def choose(plan: Plan, trials: Sequence[Trial], plain: Trial | None) -> Trial:
    """Of plain (and plain with more samples) the highest pass@1; of any other arm the best by `rank`."""
    if plain is None or trials[0].arm == EQUAL_SAMPLES:
        return max(trials, key=lambda trial: trial.mean(plan.eps)[0])
    return max(trials, key=lambda trial: rank(plan, trial, plain))


def rank(plan: Plan, trial: Trial, plain: Trial) -> tuple[bool, float]:
    """Higher is better: by outcome if pass@1 is at least plain's minus the margin, and after all those by pass@1."""
    passed, nscr = trial.mean(plan.eps)
    enough = passed >= plain.mean(plan.eps)[0] - plan.margin
    return enough, nscr if enough else passed


def _result(
    plan: Plan, trial: Trial, controls: Mapping[str, Trial], needed: Iterable[str], confidence: float
) -> ArmResult:
    e, plain = EPSILONS.index(plan.eps), controls[PLAIN]
    seeds = trial.seeds
    runs = [trial.runs[seed] for seed in seeds]
    nscr_e, line_e, gap_e = (
        tuple(two_way(values_gse[:, :, i], confidence) for i in range(len(EPSILONS)))
        for values_gse in (_nscr_gse(runs), _line_gse(runs), _nscr_gse(runs) - _line_gse(runs))
    )
    shared = _shared(trial, plain)
    pass_gs = _pass_gs([trial.runs[s] for s in shared]) - _pass_gs([plain.runs[s] for s in shared])
    differences = {
        arm: two_way(_difference_gs(trial, control, e), confidence)
        for arm, control in controls.items()
        if arm != trial.arm and _shared(trial, control)
    }
    reached, gained, lost = (
        float(np.mean([getattr(run, name)[e] for run in runs])) for name in ("reached_e", "gained_e", "lost_e")
    )
    pass_difference = two_way(pass_gs, confidence) if trial.arm != PLAIN and shared else None
    judged = plan.stage == CONFIRM and len(shared) >= CLAIM_SEEDS
    against = AgainstLine(nscr_e[e], line_e[e], gap_e[e], reached, float(np.mean([run.log_weight for run in runs])))
    return ArmResult(
        trial=trial,
        passed=two_way(_pass_gs(runs), confidence),
        nscr_e=nscr_e,
        line_e=line_e,
        gap_e=gap_e,
        reached=reached,
        gained=gained,
        lost=lost,
        to_plain_line=two_way(_to_plain_line_gs(trial, plain, e), confidence),
        pass_difference=pass_difference,
        gap_difference=_gap_difference(trial, plain, e, confidence) if pass_difference else None,
        differences=differences,
        short={arm: gap for arm, control in controls.items() if (gap := _shortfall(trial, control)) >= SHORT},
        needed=tuple(arm for arm in needed if arm != trial.arm),
        word=(verdict(against, plan.margin) or UNDECIDED) if judged else SCREENED,
        no_worse=pass_difference.low > -plan.margin if judged and pass_difference else None,
        above=tuple(arm for arm, found in differences.items() if judged and found.n >= CLAIM_SEEDS and found.low > 0),
    )


def at_equal_pass(run: ExactRun, pass_g: Floats, e: int) -> Floats:
    """NSCR of the run where its pass@1 first was `pass_g`, on each set of problems.

    A run that never got there on all problems stands at the same step on every set: else the jackknife would jump.
    """
    if pass_g[0] > run.pass_tg[:, 0].max():
        return run.nscr_tge[run.pass_tg[:, 0].argmax(), :, e]
    places = [first_reached(run.pass_tg[:, g].tolist(), float(target)) for g, target in enumerate(pass_g)]
    return np.array([place.between(run.nscr_tge[:, g, e].tolist()) for g, place in enumerate(places)])


def _difference_gs(trial: Trial, control: Trial, e: int) -> Floats:
    rows = []
    for seed in _shared(trial, control):
        ours, theirs = trial.runs[seed], control.runs[seed]
        rows.append(ours.nscr_tge[-1, :, e] - at_equal_pass(theirs, ours.pass_tg[-1], e))
    return np.array(rows).T


def _gap_difference(trial: Trial, plain: Trial, e: int, confidence: float) -> Estimate:
    shared = _shared(trial, plain)
    gaps = [
        (_nscr_gse(runs) - _line_gse(runs))[:, :, e] for runs in ([of.runs[s] for s in shared] for of in (trial, plain))
    ]
    return two_way(gaps[0] - gaps[1], confidence)


def _shortfall(trial: Trial, control: Trial) -> float:
    gaps = [
        max(0.0, float(trial.runs[s].pass_tg[-1, 0] - control.runs[s].pass_tg[:, 0].max()))
        for s in _shared(trial, control)
    ]
    return math.fsum(gaps) / len(gaps) if gaps else 0.0


def _to_plain_line_gs(trial: Trial, plain: Trial, e: int) -> Floats:
    shared = _shared(trial, plain)
    if not shared:
        return np.full((2, 1), math.nan)
    rows = [trial.runs[s].nscr_tge[-1, :, e] - plain.runs[s].line_ge[:, e] for s in shared]
    return np.array(rows).T


def _shared(ours: Trial, theirs: Trial) -> list[int]:
    return [seed for seed in ours.seeds if seed in theirs.runs]


def _pass_gs(runs: Sequence[ExactRun]) -> Floats:
    return np.array([run.pass_tg[-1] for run in runs]).T


def _nscr_gse(runs: Sequence[ExactRun]) -> Floats:
    return np.array([run.nscr_tge[-1] for run in runs]).transpose(1, 0, 2)


def _line_gse(runs: Sequence[ExactRun]) -> Floats:
    return np.array([run.line_ge for run in runs]).transpose(1, 0, 2)
