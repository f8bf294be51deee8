"""The reports of a sweep: terminal, Markdown, one HTML page with its figures, and JSON.

`described` makes the report of a sweep without a plan, `planned` that of one with a plan; here they become files.

The JSON keys are stable: keys may be added but are never renamed; `format` counts breaking changes. Without a plan:

    {"format": 3, "k": k, "base_pool": name, "confidence": 0.95, "warnings": [text],
     "missing": {run: why}, "base": {metric: x}, "variants": [VARIANT],
     "origins": {variant: {"folder": name in OUT, "overlays": [file], "settings": {key: value}, "seeds": [n]}},
     "runs": [{"variant", "seed", "steps": [n], "series": [{metric: x}], "rollouts": n or null, "base_samples": n,
               "seconds": x or null}]}

    VARIANT     name, control (true or false), seeds, "estimates": {metric: ESTIMATE},
                "since_start": ESTIMATE (NSCR minus that of step 0),
                "against_plain": null or {metric: DIFFERENCE} (the variant minus plain),
                "early_stop": null or {"estimates": {metric: ESTIMATE}, "differences": {metric: DIFFERENCE}}
    DIFFERENCE  value, low, high, n, p (two-sided), method (paired, welch, none)
    ESTIMATE    value, low, high, n (number of seeds)

Metrics: the keys of `offleash.train.variants.results.METRICS`. Undefined numbers are null. The keys of a planned sweep
are those of `offleash.train.variants.planned.record`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offleash.eval.errors import ConfigError
from offleash.eval.files import write_atomic
from offleash.eval.report.figure_style import image
from offleash.eval.report.markup import markdown_table
from offleash.eval.report.page import render
from offleash.eval.report.record import json_text
from offleash.eval.report.sanitize import markdown_text
from offleash.eval.report.tables import Table
from offleash.eval.report.text import text_table, wrapped
from offleash.train.variants.analysis import Analysis, VariantResult, analyze
from offleash.train.variants.figures import pareto_figure, tradeoff_figure
from offleash.train.variants.hparams import write_hparams
from offleash.train.variants.origins import missing_words, origins, origins_table
from offleash.train.variants.results import Sweep, read_sweep
from offleash.train.variants.runs import Run, asked_of, check_unchanged, left_out
from offleash.train.variants.significance import CONFIDENCE, Difference
from offleash.train.variants.tables import DESCRIPTIVE, name_of, notes, tables

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMAT = 3


@dataclass(frozen=True, slots=True)
class Drawing:
    name: str
    """Of its files, without suffix."""
    figure: "Figure"
    caption: str
    is_wide: bool = False


@dataclass(frozen=True, slots=True)
class Report:
    title: str
    warnings: Sequence[str]
    verdict: str
    """One sentence: what came of it."""
    summary: Sequence[str]
    drawings: Sequence[Drawing]
    tables: Sequence[Table]
    notes: Sequence[str]
    arms: Sequence[str]
    """Names of the points in the figures, by their place, as the tables write them."""
    record: Mapping[str, Any]


def write_described(runs: Sequence[Run], out: Path, width: int = 118) -> str:
    """The report of a sweep without a plan, written to `out` together with the HParams page; returned as text."""
    ended = check_ended(runs)
    sweep = read_sweep(runs)
    report = described(sweep, analyze(sweep.runs, left_out(runs, out)))
    written = write_report(traced(report, runs, out, sweep), out, width)
    write_hparams(out, sweep.runs, {run.overlay.name: asked_of(run) for run in ended})
    return written


def traced(report: "Report", runs: Sequence[Run], out: Path, sweep: Sweep) -> "Report":
    """The report with the folders, overlays and settings behind its names."""
    tables = [*report.tables, origins_table(runs, out, sweep.missing)]
    return replace(report, tables=tables, record={**report.record, "origins": origins(runs, out)})


def check_ended(runs: Sequence[Run]) -> list[Run]:
    """The runs that have ended. Raises ConfigError if one of them had other settings."""
    ended = [run for run in runs if run.has_ended]
    for run in ended:
        check_unchanged(run)
    return ended


def write_report(report: Report, out: Path, width: int = 118) -> str:
    """Write report.json, report.md, report.html and the figures to `out`; the report as text."""
    try:
        write_atomic(out / "report.json", json_text(report.record).encode())
        write_atomic(out / "report.md", markdown_report(report).encode())
        write_atomic(out / "report.html", html_report(report).encode())
        for drawing in report.drawings:
            for kind in ("png", "svg"):
                write_atomic(out / f"{drawing.name}.{kind}", image(drawing.figure, kind))
    except OSError as error:
        raise ConfigError(f"cannot write the report to {out}: {error}") from error
    return text_report(report, width)


def text_report(report: Report, width: int = 118) -> str:
    """For the terminal: what came of it first and last, and one table; the files have the others."""
    blocks = [report.title, *(wrapped(f"WARNING: {text}", width) for text in report.warnings)]
    blocks += [wrapped(text, width) for text in (report.verdict, *report.summary)]
    blocks += [text_table(table, width) for table in report.tables[:1]]
    return "\n\n".join([*blocks, wrapped(report.verdict, width)]) + "\n"


def markdown_report(report: Report) -> str:
    blocks = [f"# {report.title}", *(f"> **Warning:** {markdown_text(text)}" for text in report.warnings)]
    blocks += [f"**{markdown_text(report.verdict)}**", *map(markdown_text, report.summary)]
    blocks += [f"![{drawing.caption}]({drawing.name}.svg)" for drawing in report.drawings if not drawing.is_wide]
    for table in report.tables:
        blocks += markdown_table(table)
    blocks.append("\n".join(f"- {markdown_text(text)}" for text in report.notes))
    return "\n\n".join(blocks) + "\n"


def html_report(report: Report) -> str:
    return render(
        Path(__file__).parent / "templates" / "variants.html",
        command="offleash variants",
        title=report.title,
        warnings=report.warnings,
        verdict=report.verdict,
        summary=report.summary,
        drawings=report.drawings,
        tables=report.tables,
        notes=report.notes,
        marks={name: place for place, name in enumerate(report.arms)},
        script=(Path(__file__).parent / "templates" / "sweep.js").read_text(encoding="utf-8"),
    )


def described(sweep: Sweep, analysis: Analysis) -> Report:
    return Report(
        title="Exploration variants compared with plain and controls",
        warnings=[*missing_words(sweep.missing), *analysis.warnings],
        verdict=DESCRIPTIVE,
        summary=[],
        drawings=[
            Drawing(
                "pareto",
                pareto_figure(sweep, analysis),
                "pass@1 against NSCR: means over seeds with intervals, which are cut off where they are long. Line: "
                "the Pareto front.",
            ),
            Drawing(
                "tradeoffs",
                tradeoff_figure(sweep, analysis),
                "pass@1 against other metrics of support and diversity.",
                is_wide=True,
            ),
        ],
        tables=tables(sweep, analysis),
        notes=notes(sweep),
        arms=[name_of(variant) for variant in analysis.variants],
        record=_record(sweep, analysis),
    )


def _record(sweep: Sweep, analysis: Analysis) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "k": sweep.k,
        "base_pool": sweep.base_pool,
        "confidence": CONFIDENCE,
        "warnings": analysis.warnings,
        "missing": sweep.missing,
        "base": sweep.base,
        "variants": [_variant(variant) for variant in analysis.variants],
        "runs": sweep.runs,
    }


def _variant(variant: VariantResult) -> dict[str, Any]:
    stop = variant.early_stop
    return {
        "name": variant.name,
        "control": variant.is_control,
        "seeds": variant.seeds,
        "estimates": variant.estimates,
        "since_start": variant.since_start,
        "against_plain": variant.against_plain and _differences(variant.against_plain),
        "early_stop": stop and {"estimates": stop.estimates, "differences": _differences(stop.differences)},
    }


def _differences(values: Mapping[str, Difference]) -> dict[str, Any]:
    return {metric: {**d.estimate._asdict(), "p": d.p, "method": d.method} for metric, d in values.items()}
