"""The reports of a sweep: terminal, Markdown, one HTML page with its figures, and JSON.

The JSON keys are stable: keys may be added but are never renamed; `format` counts breaking changes.

    {"format": 2, "k": k, "base_pool": name, "margin": x, "confidence": 0.95, "family": n, "warnings": [text],
     "missing": {run: why}, "base": {metric: x}, "variants": [VARIANT],
     "runs": [{"variant", "seed", "steps": [n], "series": [{metric: x}], "rollouts": n or null, "base_samples": n}]}

    VARIANT     name, control (true or false), seeds, "estimates": {metric: ESTIMATE},
                "since_start": ESTIMATE (NSCR minus that of step 0),
                "against": {plain | placebo | low_lr | two_updates | high_lr: {metric: DIFFERENCE}} (the variant minus
                the reference),
                "holm_p": {metric: p} (against plain, over the `family` of variants that are not controls),
                "better_p": p (of all that `better` claims, corrected likewise),
                "early_stop": null or {"estimates": {metric: ESTIMATE}, "differences": {metric: DIFFERENCE}},
                "verdict": {word, why, pass_no_worse, expands, expands_significantly}
    DIFFERENCE  value, low, high, n, lower_bound (one-sided, 95 %), p (two-sided), method (paired, welch, none)
    ESTIMATE    value, low, high, n (number of seeds)

Metrics: the keys of `offleash.train.variants.results.METRICS`. Undefined numbers are null.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from offleash.eval.errors import ConfigError
from offleash.eval.files import write_atomic
from offleash.eval.report.figure_style import image
from offleash.eval.report.markup import markdown_table
from offleash.eval.report.page import render
from offleash.eval.report.record import json_text
from offleash.eval.report.sanitize import markdown_text
from offleash.eval.report.text import text_table, wrapped
from offleash.train.variants.analysis import Analysis, VariantResult, analyze
from offleash.train.variants.figures import pareto_figure, tradeoff_figure
from offleash.train.variants.hparams import write_hparams
from offleash.train.variants.results import Sweep, read_sweep
from offleash.train.variants.runs import Run, asked_of, check_unchanged, left_out, tried
from offleash.train.variants.significance import CONFIDENCE, Difference
from offleash.train.variants.tables import notes, summary, tables

FORMAT = 2
TITLE = "Exploration variants compared with plain and controls"


def write_reports(runs: Sequence[Run], out: Path, margin: float, width: int = 118) -> str:
    """Write report.json, report.md, report.html, the figures and the HParams page to `out`; the report as text."""
    ended = [run for run in runs if run.has_ended]
    for run in ended:
        check_unchanged(run)
    sweep = read_sweep(runs)
    analysis = analyze(sweep.runs, margin, tried(runs, out), left_out(runs, out))
    try:
        for suffix, make in (("json", json_report), ("md", markdown_report), ("html", html_report)):
            write_atomic(out / f"report.{suffix}", make(sweep, analysis).encode())
        for name, draw in (("pareto", pareto_figure), ("tradeoffs", tradeoff_figure)):
            for kind in ("png", "svg"):
                write_atomic(out / f"{name}.{kind}", image(draw(sweep, analysis), kind))
        write_hparams(out / "tensorboard", sweep.runs, {(run.overlay.name, run.seed): asked_of(run) for run in ended})
    except OSError as error:
        raise ConfigError(f"cannot write the report to {out}: {error}") from error
    return text_report(sweep, analysis, width)


def text_report(sweep: Sweep, analysis: Analysis, width: int = 118) -> str:
    blocks = [TITLE, *(wrapped(f"WARNING: {text}", width) for text in _warnings(sweep, analysis))]
    blocks += [wrapped(text, width) for text in summary(analysis)]
    blocks += [text_table(table, width) for table in tables(sweep, analysis)]
    return "\n\n".join([*blocks, "\n".join(wrapped(text, width) for text in notes(sweep, analysis))]) + "\n"


def markdown_report(sweep: Sweep, analysis: Analysis) -> str:
    blocks = [f"# {TITLE}", *(f"> **Warning:** {markdown_text(text)}" for text in _warnings(sweep, analysis))]
    blocks += [markdown_text(text) for text in summary(analysis)]
    blocks.append("![pass@1 against NSCR](pareto.svg)")
    for table in tables(sweep, analysis):
        blocks += markdown_table(table)
    blocks.append("\n".join(f"- {markdown_text(text)}" for text in notes(sweep, analysis)))
    return "\n\n".join(blocks) + "\n"


def html_report(sweep: Sweep, analysis: Analysis) -> str:
    return render(
        Path(__file__).parent / "templates" / "variants.html",
        command="offleash variants",
        title=TITLE,
        warnings=_warnings(sweep, analysis),
        summary=summary(analysis),
        pareto=pareto_figure(sweep, analysis),
        tradeoffs=tradeoff_figure(sweep, analysis),
        tables=tables(sweep, analysis),
        notes=notes(sweep, analysis),
    )


def json_report(sweep: Sweep, analysis: Analysis) -> str:
    return json_text(
        {
            "format": FORMAT,
            "k": sweep.k,
            "base_pool": sweep.base_pool,
            "margin": analysis.margin,
            "confidence": CONFIDENCE,
            "family": analysis.family,
            "warnings": analysis.warnings,
            "missing": sweep.missing,
            "base": sweep.base,
            "variants": [_variant(variant) for variant in analysis.variants],
            "runs": sweep.runs,
        }
    )


def _variant(variant: VariantResult) -> dict[str, Any]:
    stop = variant.early_stop
    return {
        "name": variant.name,
        "control": variant.is_control,
        "seeds": variant.seeds,
        "estimates": variant.estimates,
        "since_start": variant.since_start,
        "against": {reference: _differences(values) for reference, values in variant.against.items()},
        "holm_p": variant.holm_p,
        "better_p": variant.better_p,
        "early_stop": stop and {"estimates": stop.estimates, "differences": _differences(stop.differences)},
        "verdict": variant.verdict,
    }


def _differences(values: Mapping[str, Difference]) -> dict[str, Any]:
    return {
        metric: {**d.estimate._asdict(), "lower_bound": d.lower_bound, "p": d.p, "method": d.method}
        for metric, d in values.items()
    }


def _warnings(sweep: Sweep, analysis: Analysis) -> list[str]:
    missing = [f"{name}: no result, {why}" for name, why in sweep.missing.items()]
    return [*missing, *analysis.warnings]
