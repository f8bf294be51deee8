"""A sweep's report as JSON. The keys are a promise: they are added to, never renamed; `format` counts breaking changes.

    {"format": 1, "k": k, "base_pool": name, "margin": x, "confidence": 0.95, "family": n, "warnings": [text],
     "missing": {run: why}, "base": {metric: x}, "variants": [VARIANT],
     "runs": [{"variant", "seed", "steps": [n], "series": [{metric: x}], "rollouts": n or null, "base_samples": n}]}

    VARIANT     name, control (true or false), seeds, "estimates": {metric: ESTIMATE},
                "since_start": ESTIMATE (NSCR less that of step 0),
                "against": {plain | placebo | low_lr | two_updates | high_lr: {metric: DIFFERENCE}} (the variant less
                the reference),
                "holm_p": {metric: p} (against plain, over the `family` of variants that are no controls),
                "better_p": p (of all that `better` claims, corrected likewise),
                "early_stop": null or {"estimates": {metric: ESTIMATE}, "differences": {metric: DIFFERENCE}},
                "verdict": {word, why, pass_no_worse, escapes, escapes_surely}
    DIFFERENCE  value, low, high, n, lower_bound (one-sided, 95 %), p (two-sided), method (paired, welch, none)
    ESTIMATE    value, low, high, n (seeds it rests on)

Metrics: the keys of `offleash.train.variants.results.METRICS`. What is undefined is null.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from offleash.eval.stats.intervals import Estimate
from offleash.train.variants.analysis import Analysis, VariantResult
from offleash.train.variants.results import Sweep
from offleash.train.variants.significance import CONFIDENCE, Difference

FORMAT = 1


def json_report(sweep: Sweep, analysis: Analysis) -> str:
    values = {
        "format": FORMAT,
        "k": sweep.k,
        "base_pool": sweep.base_pool,
        "margin": analysis.margin,
        "confidence": CONFIDENCE,
        "family": analysis.family,
        "warnings": list(analysis.warnings),
        "missing": dict(sweep.missing),
        "base": dict(sweep.base),
        "variants": [_variant(variant) for variant in analysis.variants],
        "runs": [asdict(run) for run in sweep.runs],
    }
    return json.dumps(_defined(values), indent=1, allow_nan=False) + "\n"


def _variant(variant: VariantResult) -> dict[str, Any]:
    stop = variant.early_stop
    return {
        "name": variant.name,
        "control": variant.is_control,
        "seeds": list(variant.seeds),
        "estimates": _estimates(variant.estimates),
        "since_start": variant.since_start._asdict(),
        "against": {reference: _differences(values) for reference, values in variant.against.items()},
        "holm_p": dict(variant.holm_p),
        "better_p": variant.better_p,
        "early_stop": stop and {"estimates": _estimates(stop.estimates), "differences": _differences(stop.differences)},
        "verdict": asdict(variant.verdict),
    }


def _estimates(values: Mapping[str, Estimate]) -> dict[str, Any]:
    return {metric: e._asdict() for metric, e in values.items()}


def _differences(values: Mapping[str, Difference]) -> dict[str, Any]:
    return {
        metric: {**d.estimate._asdict(), "lower_bound": d.lower_bound, "p": d.p, "method": d.method}
        for metric, d in values.items()
    }


def _defined(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _defined(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_defined(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
