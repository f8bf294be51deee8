"""The tables of a sweep without a plan as plain cells, the same for every format, and the text around them."""

import math
from collections.abc import Callable, Sequence

from offleash.eval.report.numbers import DASH, estimate, number, p_value, percent, share
from offleash.eval.report.tables import Table
from offleash.train.variants.analysis import Analysis, VariantResult
from offleash.train.variants.overlays import PLAIN
from offleash.train.variants.results import METRICS, Measured, Sweep
from offleash.train.variants.significance import Difference

LEADING = ("pass_at_1", "nscr", "srr", "ndr", "sds")
PROBLEMS = ("problem_nscr", "problem_srr", "problem_ndr", "problem_sds")
SAMPLES = ("pass_at_top", "distinct_correct", "answer_entropy", "token_entropy")
RATES = ("no_answer", "truncated", "failed")
COMPARED = (*LEADING[:4], "distinct_correct", "answer_entropy", "token_entropy")

DESCRIPTIVE = (
    "This sweep has no plan, so it is a description: nothing was fixed before the runs, and no verdict follows. To "
    "claim something, write a plan: offleash variants --plan FILE."
)
DEFINITIONS = (
    "base: its support metrics are those of step 0, where the policy is the base, so they show sampling noise only. "
    "All runs share one base pool, which shifts their NSCR alike; step 0, sampled anew for each seed, shows how far.",
    "NSCR at k: an NSCR above 0 may be sampling efficiency. What a reweighting of the base would have at the same "
    "pass@1 is not known from these numbers.",
    "rollouts: the rollouts the variant was trained on, plus the base samples it drew on training problems, if any.",
    "plain at equal pass@1: plain stopped early, at the variant's pass@1 (interpolated between measurements on an "
    "isotonic fit, seed by seed; the end of the run if plain never reached it). The number of seeds is in parentheses. "
    "Where plain's pass@1 has leveled off, this point tends to be too early.",
)


def notes(sweep: Sweep) -> tuple[str, ...]:
    return (
        f"k = {sweep.k} samples per probe problem, base pool {sweep.base_pool}.",
        "Means over seeds with 95 % t intervals: they cover other training seeds and the sampling noise at k, on these "
        "probe problems and this base pool; they do not cover other problems. p-values are not corrected.",
        *DEFINITIONS,
    )


def tables(sweep: Sweep, analysis: Analysis) -> list[Table]:
    found = [_variants(sweep, analysis), _samples(sweep, analysis), _problems(analysis)]
    others = [variant for variant in analysis.variants if variant.name != PLAIN]
    if others:
        found += [_differences(others), _early_stops(others)]
    return [*found, _runs(sweep)]


def name_of(variant: VariantResult) -> str:
    return f"{variant.name} (control)" if variant.is_control else variant.name


def _variants(sweep: Sweep, analysis: Analysis) -> Table:
    titles = [METRICS[m] for m in LEADING]
    header = ("", "seeds", *titles[:2], "plain at equal pass@1", *titles[2:], "NSCR − step 0", "rollouts")
    nscr, *others = [share(value) for value in _at_start(sweep)]
    rows = [("base", DASH, share(sweep.base["pass_at_1"]), nscr, DASH, *others, DASH, DASH)]
    for variant in analysis.variants:
        cells = [estimate(variant.estimates[m]) for m in LEADING]
        cells.insert(2, _early_cell(variant))
        cells += [estimate(variant.since_start), budget([run for run in sweep.runs if run.variant == variant.name])]
        rows.append((name_of(variant), str(len(variant.seeds)), *cells))
    note = "Support of units. Plain at equal pass@1: plain's NSCR."
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


def _differences(variants: Sequence[VariantResult]) -> Table:
    rows = []
    for variant in variants:
        assert variant.against_plain is not None
        found = [(metric, variant.against_plain[metric]) for metric in COMPARED]
        cells = [f"{estimate(d.estimate, _writer(metric))} (p {_equals(d.p)})" for metric, d in found]
        rows.append((name_of(variant), *cells, variant.against_plain["nscr"].method))
    header = ("", *(METRICS[m] for m in COMPARED), "test")
    note = "Variant minus plain. p is two-sided and not corrected for the number of variants or metrics."
    return Table("differences", "Differences from plain", header, tuple(rows), note)


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
            *(str(run.steps[-1]), budget([run])),
            *(share(run.last[m]) for m in LEADING),
        )
        for run in sweep.runs
    ]
    return Table("runs", "Runs", ("", "step", "rollouts", *(METRICS[m] for m in LEADING)), tuple(rows))


def _at_start(sweep: Sweep) -> list[float]:
    """Mean NSCR, SRR, NDR and SDS at step 0, which all runs of a seed share."""
    starts = list({run.seed: run.first for run in sweep.runs if run.first}.values())
    return [math.fsum(s[m] for s in starts) / len(starts) if starts else math.nan for m in LEADING[1:]]


def _early_cell(variant: VariantResult) -> str:
    if variant.early_stop is None:
        return DASH
    nscr = variant.early_stop.estimates["nscr"]
    return f"{share(nscr.value)} ({nscr.n})"


def budget(runs: Sequence[Measured]) -> str:
    """Means over seeds: 51,200 + 32,768."""
    known = [run.rollouts for run in runs if run.rollouts is not None]
    rollouts = f"{math.fsum(known) / len(known):,.0f}" if known else DASH
    extra = math.fsum(run.base_samples for run in runs) / len(runs)
    return f"{rollouts} + {extra:,.0f}" if extra else rollouts


def _writer(metric: str) -> Callable[[float], str]:
    return percent if metric in RATES else share if metric in (*LEADING, "pass_at_top") else number


def _p(difference: Difference) -> str:
    return p_value(difference.p)


def _equals(p: float) -> str:
    return DASH if math.isnan(p) else p_value(p) if p < 0.001 else f"= {share(p)}"
