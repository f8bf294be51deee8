"""The tables of a sweep's report as plain cells, the same for every format, and the text around them."""

import math
from collections.abc import Callable, Sequence

from offleash.eval.report.numbers import DASH, estimate, number, p_value, percent, share
from offleash.eval.report.tables import Table
from offleash.train.variants.analysis import REFERENCES, Analysis, VariantResult
from offleash.train.variants.overlays import PLAIN
from offleash.train.variants.results import METRICS, Measured, Sweep
from offleash.train.variants.significance import ALPHA, Difference, t_quantile

LEADING = ("pass_at_1", "nscr", "srr", "ndr", "sds")
PROBLEMS = ("problem_nscr", "problem_srr", "problem_ndr", "problem_sds")
SAMPLES = ("pass_at_top", "distinct_correct", "answer_entropy", "token_entropy")
RATES = ("no_answer", "truncated", "failed")
MANY_SEEDS = 8
COMPARED = (*LEADING[2:], "distinct_correct", "answer_entropy", "token_entropy")

DEFINITIONS = (
    "better: NSCR is above that of plain, placebo, low_lr and, if it has one, the variant's own control, and pass@1 is "
    "no worse than plain's. Its p-value is the largest of these tests, and is below .05 after Holm's correction over "
    "all variants that are not controls, including those without results.",
    "no worse: the one-sided 95 % lower bound of the difference in pass@1 to plain is above minus the margin.",
    "expands: the mean NSCR is at least 0 (as much gained as lost) and pass@1 is no worse; significantly, if the lower "
    "bounds of NSCR and of its change since step 0 are at least 0 as well. Not corrected for the number of variants.",
    "base: its support metrics are those of step 0, where the policy is the base, so they show sampling noise only. "
    "All runs share one base pool, which shifts their NSCR alike; step 0, sampled anew for each seed, shows how far.",
    "open: above plain, but a control that the variant must be above was not run; or fewer than 2 seeds.",
    "rollouts: the rollouts the variant was trained on, plus the base samples it drew on training problems, if any.",
    "plain at equal pass@1: plain stopped early, at the variant's pass@1 (interpolated between measurements on an "
    "isotonic fit, seed by seed; the end of the run if plain never reached it). The number of seeds is in parentheses. "
    "Where plain's pass@1 has leveled off, this point tends to be too early.",
)


def summary(analysis: Analysis) -> tuple[str, ...]:
    """The main findings."""
    tested = [v for v in analysis.variants if not v.is_control]
    better = [v.name for v in tested if v.verdict.word == "better"]
    expands = [v.name for v in tested if v.verdict.expands]
    return (
        f"{len(better)} of {len(tested)} variants better than plain and the controls{_named(better)}; "
        f"{len(expands)} with NSCR of at least 0 and pass@1 no worse{_named(expands)}. "
        f"`better` is corrected for {analysis.family} variant{'' if analysis.family == 1 else 's'}"
        f"{_power(analysis, max((len(v.seeds) for v in tested), default=0))}.",
    )


def _power(analysis: Analysis, seeds: int) -> str:
    """The paired difference at which the smallest p-value of the family passes Holm's correction."""
    if seeds < 2:
        return ""

    def needed(n: int) -> float:
        return t_quantile(1 - ALPHA / 2 / analysis.family, n - 1) / math.sqrt(n)

    told = f": with {seeds} seeds a mean difference is significant at {needed(seeds):.1f} of its standard deviations"
    if seeds >= MANY_SEEDS or analysis.family == 1:
        return told
    return (
        f"{told}, with {MANY_SEEDS} seeds {needed(MANY_SEEDS):.1f}. To confirm the best few, run them with new seeds "
        "(--first-seed) in a new folder, where the correction counts only these"
    )


def notes(sweep: Sweep, analysis: Analysis) -> tuple[str, ...]:
    return (
        f"k = {sweep.k} samples per probe problem, base pool {sweep.base_pool}, pass@1 margin {analysis.margin:g}.",
        "Means over seeds with 95 % t intervals: they cover other training seeds and the sampling noise at k, on these "
        "probe problems and this base pool; they do not cover other problems.",
        "The verdict is based on NSCR of units; other p-values are corrected over variants but not over metrics.",
        *DEFINITIONS,
    )


def tables(sweep: Sweep, analysis: Analysis) -> list[Table]:
    found = [_verdicts(sweep, analysis), _samples(sweep, analysis), _problems(analysis)]
    others = [variant for variant in analysis.variants if variant.name != PLAIN]
    if reasons := tuple((variant.name, variant.verdict.why) for variant in others if variant.verdict.why):
        found.append(Table("reasons", "Why not better", ("", "reason"), reasons))
    if others:
        found += [_nscr_tests(others), _other_differences(others), _early_stops(others)]
    return [*found, _runs(sweep)]


def name_of(variant: VariantResult) -> str:
    return f"{variant.name} (control)" if variant.is_control else variant.name


def _verdicts(sweep: Sweep, analysis: Analysis) -> Table:
    titles = [METRICS[m] for m in LEADING]
    header = ("", "verdict", "expands", "seeds", *titles[:2], "plain at equal pass@1", *titles[2:], "rollouts")
    nscr, *others = [share(value) for value in _at_start(sweep)]
    rows = [("base", DASH, DASH, DASH, share(sweep.base["pass_at_1"]), nscr, DASH, *others, DASH)]
    for variant in analysis.variants:
        cells = [estimate(variant.estimates[m]) for m in LEADING]
        cells.insert(2, _early_cell(variant))
        cells.append(_budget([run for run in sweep.runs if run.variant == variant.name]))
        word = variant.verdict.word
        rows.append((name_of(variant), word, _expands_words(variant), str(len(variant.seeds)), *cells))
    note = "Support of units. The column `plain at equal pass@1` is plain's NSCR."
    return Table("variants", "Variants", header, tuple(rows), note)


def _samples(sweep: Sweep, analysis: Analysis) -> Table:
    top = f"pass@{1 << (sweep.k.bit_length() - 1)}"
    entropy = f"token entropy ({sweep.token_entropy.rpartition('_')[2]})"
    titles = {**METRICS, "pass_at_top": top, "token_entropy": entropy}
    rows = [("base", *(_writer(m)(sweep.base[m]) for m in (*SAMPLES, *RATES)))]
    for variant in analysis.variants:
        full = [estimate(variant.estimates[m], _writer(m)) for m in SAMPLES]
        rows.append((name_of(variant), *full, *(percent(variant.estimates[m].value) for m in RATES)))
    header = ("", *(titles[m] for m in (*SAMPLES, *RATES)))
    note = "Distinct correct answers per problem in k samples; entropies in nats."
    return Table("samples", "Samples", header, tuple(rows), note)


def _problems(analysis: Analysis) -> Table:
    rows = tuple((name_of(v), *(estimate(v.estimates[m]) for m in PROBLEMS)) for v in analysis.variants)
    note = "A problem counts as reached if any of its correct answers is."
    return Table("problems", "Support of problems", ("", "NSCR", "SRR", "NDR", "SDS"), rows, note)


def _nscr_tests(variants: Sequence[VariantResult]) -> Table:
    header = (
        *("", "pass@1 − plain", "no worse", "NSCR − plain", "p", "p (Holm)", "p, placebo", "p, low_lr"),
        *("p, own control", "p, better", "NSCR − step 0", "test"),
    )
    rows = []
    for variant in variants:
        ours = variant.against[PLAIN]
        ps = [_p(variant.against.get(reference, {}).get("nscr")) for reference in REFERENCES[1:]]
        rows.append(
            (
                name_of(variant),
                f"{estimate(ours['pass_at_1'].estimate)}, ≥ {share(ours['pass_at_1'].lower_bound)}",
                "yes" if variant.verdict.pass_no_worse else "no",
                estimate(ours["nscr"].estimate),
                _p(ours["nscr"]),
                p_value(variant.holm_p["nscr"]),
                *ps,
                _own_control(variant),
                p_value(variant.better_p),
                estimate(variant.since_start),
                ours["nscr"].method,
            )
        )
    note = (
        "≥: the one-sided 95 % lower bound. p is two-sided; only a positive difference counts as above. "
        "`p, better`: the p-value of the verdict, with Holm's correction."
    )
    return Table("tests", "Comparison with plain and the controls", header, tuple(rows), note)


def _other_differences(variants: Sequence[VariantResult]) -> Table:
    rows = []
    for variant in variants:
        cells = []
        for metric in COMPARED:
            p = variant.against[PLAIN][metric].p if variant.is_control else variant.holm_p[metric]
            cells.append(f"{_writer(metric)(variant.against[PLAIN][metric].estimate.value)} (p {_equals(p)})")
        rows.append((name_of(variant), *cells))
    header = ("", *(METRICS[m] for m in COMPARED))
    note = "Variant minus plain. p with Holm's correction over the variants; uncorrected for controls."
    return Table("differences", "Other differences from plain", header, tuple(rows), note)


def _early_stops(variants: Sequence[VariantResult]) -> Table:
    rows = []
    for variant in variants:
        stop = variant.early_stop
        if stop is None:
            rows.append((name_of(variant), "0", *[DASH] * 6))
            continue
        difference = stop.differences["nscr"]
        at = [_writer(m)(stop.estimates[m].value) for m in ("srr", "ndr", "distinct_correct")]
        cells = (estimate(stop.estimates["nscr"]), estimate(difference.estimate), _p(difference), *at)
        rows.append((name_of(variant), str(stop.estimates["nscr"].n), *cells))
    header = ("", "seeds", "NSCR", "variant − plain", "p", "SRR", "NDR", "distinct correct")
    return Table("early-stop", "Plain at equal pass@1 (early stop)", header, tuple(rows), DEFINITIONS[-1])


def _runs(sweep: Sweep) -> Table:
    rows = [
        (
            f"{run.variant} seed {run.seed}",
            *(str(run.steps[-1]), _budget([run])),
            *(share(run.last[m]) for m in LEADING),
            "ended",
        )
        for run in sweep.runs
    ]
    rows += [(name, *[DASH] * (2 + len(LEADING)), why[:60]) for name, why in sweep.missing.items()]
    return Table("runs", "Runs", ("", "step", "rollouts", *(METRICS[m] for m in LEADING), "state"), tuple(rows))


def _at_start(sweep: Sweep) -> list[float]:
    """Mean NSCR, SRR, NDR and SDS at step 0, which all runs of a seed share."""
    starts = list({run.seed: run.first for run in sweep.runs if run.first}.values())
    return [math.fsum(s[m] for s in starts) / len(starts) if starts else math.nan for m in LEADING[1:]]


def _early_cell(variant: VariantResult) -> str:
    if variant.early_stop is None:
        return DASH
    nscr = variant.early_stop.estimates["nscr"]
    return f"{share(nscr.value)} ({nscr.n})"


def _budget(runs: Sequence[Measured]) -> str:
    """Means over seeds: 51,200 + 32,768."""
    known = [run.rollouts for run in runs if run.rollouts is not None]
    rollouts = f"{math.fsum(known) / len(known):,.0f}" if known else DASH
    extra = math.fsum(run.base_samples for run in runs) / len(runs)
    return f"{rollouts} + {extra:,.0f}" if extra else rollouts


def _own_control(variant: VariantResult) -> str:
    tested = [control for control in variant.own_controls if control in variant.against]
    return ", ".join(f"{control} {_p(variant.against[control]['nscr'])}" for control in tested) or DASH


def _expands_words(variant: VariantResult) -> str:
    verdict = variant.verdict
    return "significantly" if verdict.expands_significantly else "yes" if verdict.expands else "no"


def _writer(metric: str) -> Callable[[float], str]:
    return percent if metric in RATES else share if metric in (*LEADING, "pass_at_top") else number


def _p(difference: Difference | None) -> str:
    return DASH if difference is None else p_value(difference.p)


def _equals(p: float) -> str:
    return DASH if math.isnan(p) else p_value(p) if p < 0.001 else f"= {share(p)}"


def _named(names: Sequence[str]) -> str:
    return f" ({', '.join(names)})" if names else ""
