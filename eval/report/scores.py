"""Reports of trace scores: a table with a row per file and model as text, Markdown and JSON.

The JSON keys are stable: keys may be added but are never renamed; `format` counts breaking changes.

    {"format": 1, "confidence": 0.95, "temperature": 1.0, "notes": [text], "traces": [{"file": name, "traces": n,
     "problems": n, "models": [{"model", "revision", "weights", "dtype", "template" (a fingerprint), "end_token",
     "scored", "empty", "too_long", "perplexity": ESTIMATE, "mean_perplexity": ESTIMATE, "median_perplexity": x,
     "token_entropy": ESTIMATE (nats), "tokens": ESTIMATE}]}]}

    ESTIMATE  value, low, high, n (number of problems)

An undefined number is null. Definitions: `offleash.eval.scoring.summary`.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from offleash.eval.report.markup import markdown_table
from offleash.eval.report.numbers import estimate, number
from offleash.eval.report.record import json_text
from offleash.eval.report.sanitize import markdown_text
from offleash.eval.report.tables import Table
from offleash.eval.report.text import text_table
from offleash.eval.scoring.summary import CONFIDENCE
from offleash.eval.scoring.traces import TraceResult

HEADER = ("", "scored", "perplexity", "mean", "median", "token entropy", "tokens")
LEGEND = (
    "perplexity: exp of the mean -log p per token (over a trace, over a problem's traces, over problems); mean, "
    "median: of the perplexities of single traces; token entropy in nats; 95% intervals over problems; temperature {:g}"
)


def notes(results: Sequence[TraceResult]) -> list[str]:
    """Caveats: traces that were left out, perplexities that cannot be compared."""
    found = []
    for one in results:
        scores, where = one.scores, f"{one.traces.path.name} under {one.model}"
        if scores.empty:
            found.append(f"{where}: {scores.empty:,} empty traces are left out")
        if scores.too_long:
            found.append(
                f"{where}: {scores.too_long:,} traces do not fit into the model's {one.source.context:,} tokens with "
                "their prompt and are left out"
            )
    for one in results:
        same_file = [other for other in results if other.traces is one.traces]
        if one is same_file[0] and any(
            not np.array_equal(one.scores.tokens_s, other.scores.tokens_s) for other in same_file
        ):
            found.append(
                f"{one.traces.path.name}: the models tokenize these traces differently: perplexities per token are not "
                "comparable"
            )
    return found


def text_report(results: Sequence[TraceResult], temperature: float, width: int = 118) -> str:
    return text_table(_table(results, temperature), width) + "\n"


def markdown_report(results: Sequence[TraceResult], temperature: float) -> str:
    _, *blocks = markdown_table(_table(results, temperature))  # without its heading
    return "\n\n".join([*blocks, *map(markdown_text, notes(results))]) + "\n"


def json_report(results: Sequence[TraceResult], temperature: float) -> str:
    by_file: dict[int, dict[str, Any]] = {}
    for one in results:
        traces = one.traces
        head = {"file": traces.path.name, "traces": len(traces.completions), "problems": len(traces.problems)}
        by_file.setdefault(id(traces), {**head, "models": []})["models"].append(_record(one))
    content = {"format": 1, "confidence": CONFIDENCE, "temperature": temperature, "notes": notes(results)}
    return json_text({**content, "traces": list(by_file.values())})


def _table(results: Sequence[TraceResult], temperature: float) -> Table:
    return Table("traces", "Traces", HEADER, tuple(_cells(one) for one in results), LEGEND.format(temperature))


def _cells(one: TraceResult) -> tuple[str, ...]:
    found = one.scores.summary
    return (
        f"{one.traces.path.name} under {one.model}",
        f"{found.sequences:,} of {len(one.traces.completions):,}",
        estimate(found.perplexity, number),
        estimate(found.mean_perplexity, number),
        number(found.median_perplexity),
        estimate(found.token_entropy, number),
        estimate(found.tokens, number),
    )


def _record(one: TraceResult) -> dict[str, Any]:
    found, source = one.scores.summary, one.source
    return {
        "model": one.model,
        "revision": source.revision,
        "weights": source.weights,
        "dtype": source.dtype,
        "template": one.template,
        "end_token": one.end_token,
        "scored": found.sequences,
        "empty": one.scores.empty,
        "too_long": one.scores.too_long,
        "perplexity": found.perplexity,
        "mean_perplexity": found.mean_perplexity,
        "median_perplexity": found.median_perplexity,
        "token_entropy": found.token_entropy,
        "tokens": found.tokens,
    }
