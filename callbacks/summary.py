"""What a run measured, as its folder keeps it (`support.json`), and the table printed at its end."""

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from offleash.callbacks import tags
from offleash.callbacks.metrics import verdict_of
from offleash.eval.files import write_atomic
from offleash.eval.report.numbers import p_words
from offleash.eval.stats.passk import powers_of_two
from offleash.eval.stats.support import CELLS, detection_limit, expected_metrics

HISTORY = "support.json"
"""In the run's folder: the base's metrics and those of every measured step."""


def write_record(folder: Path, record: Mapping[str, Any]) -> None:
    """Undefined numbers become null."""
    steps = {str(step): _jsonable(metrics) for step, metrics in sorted(record["steps"].items())}
    record = {**record, "base": _jsonable(record["base"]), "steps": steps}
    write_atomic(folder / HISTORY, json.dumps(record, indent=1).encode())


def path_from(folder: Path, path: Path) -> str:
    """How the record of a run names `path`: relative to the run's folder, so that both can be moved together."""
    return os.path.relpath(path.resolve(), folder.resolve())


def read_record(folder: Path) -> dict[str, Any] | None:
    """What `write_record` wrote, with NaN for null; None if there is none or it cannot be read."""
    try:
        record = json.loads((folder / HISTORY).read_text())
        steps = {int(step): _floats(metrics) for step, metrics in record["steps"].items()}
        known = {"k": int(record["k"]), "token_entropy": str(record["token_entropy"]), "base_pool": record["base_pool"]}
        return {**record, **known, "base": _floats(record["base"]), "steps": steps}
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None


def read_steps(folder: Path, last: int) -> dict[int, dict[str, float]]:
    """The metrics of every measured step up to `last`, with NaN for null; {} if nothing was recorded."""
    record = read_record(folder)
    return {} if record is None else {step: metrics for step, metrics in record["steps"].items() if step <= last}


def run_summary(record: Mapping[str, Any], folder: Path) -> str:
    """A small table from a run's record, and the command that shows the details."""
    history = {int(step): metrics for step, metrics in record["steps"].items()}
    base, k = record["base"], record["k"]
    first, last = min(history), max(history)
    top, units, noise = powers_of_two(k)[-1], unit_words(history[last]), noise_rates(history[last])
    rows = [
        ("pass@1", tags.pass_at(1).tag),
        (f"pass@{top}", tags.pass_at(top).tag),
        (f"SRR  (fraction of base {units} retained)", tags.UNIT.srr.tag),
        (f"NDR  (fraction of policy {units} that are new)", tags.UNIT.ndr.tag),
        ("SDS  (harmonic mean of SRR and NDR)", tags.UNIT.sds.tag),
        ("NSCR ((gained - lost) / union)", tags.UNIT.nscr.tag),
        ("  KL-optimal reweighting at this pass@1", tags.LEASH.nscr.tag),
        ("answer entropy (nats)", tags.ANSWER_ENTROPY.tag),
        ("token entropy (nats)", record["token_entropy"]),
    ]
    if tags.EXACT_PASS_AT_1.tag in history[last]:
        rows += [
            ("exact pass@1", tags.EXACT_PASS_AT_1.tag),
            ("exact NSCR(1e-3)", tags.at_floor(tags.EXACT_NSCR, 1e-3).tag),
            ("  KL-optimal reweighting at this pass@1", tags.at_floor(tags.LEASH_NSCR, 1e-3).tag),
        ]
    lines = ["", f"{'':50}{'base':>7}{f'step {first}':>10}{f'step {last}':>10}{'noise':>8}".rstrip()]
    for title, tag in rows:
        cells = [three_digits(metrics.get(tag)) for metrics in (base, history[first], history[last])]
        lines.append(f"{title:50}{cells[0]:>7}{cells[1]:>10}{cells[2]:>10}{three_digits(noise.get(tag)):>8}")
    samples, seconds = (history[last][metric.tag] for metric in (tags.SAMPLES, tags.SECONDS_TOTAL))
    what = "problems" if units == "problems" else "(problem, correct answer) pairs"
    lines += [
        f"{'seconds spent monitoring':50}{seconds:>27.1f}",
        "",
        f"At step {last}: {moved_words(history[last])};",
        f"{sure_words(history[last])}.{_spellings(history[last])}",
        *leash_words(history[last]),
        "noise: what a second sample of the base would show, if nothing had changed. p: of how firmly those were held.",
        f"Support counts {what} hit in k = {k} samples ({samples:.0f} samples per step);",
        f"one that was missed may still have probability {detection_limit(k):.2g} (95 % confidence).",
        f"Every number:  offleash compare {folder} --full",
        f"Details:  offleash view {folder}",
        "",
    ]
    return "\n".join(lines)


def leash_words(metrics: Mapping[str, float]) -> list[str]:
    """What became of support, in a word, and what it was held against; nothing if it was not measured."""
    above, low, high = (metrics.get(m.tag, math.nan) for m in tags.LEASH[1:4])
    if math.isnan(above):
        return []
    word = verdict_of(metrics) or "none"
    return [
        f"Verdict: {word}. NSCR differs by {above:+.3f} [{low:+.3f}, {high:+.3f}] from that of the",
        "KL-optimal reweighting of the base at this pass@1.",
    ]


def unit_words(metrics: Mapping[str, float]) -> str:
    """What is counted, in a word: problems where each has one unit, otherwise solutions."""
    units, problems = (
        sum(metrics.get(getattr(level, cell).tag, math.nan) for cell in CELLS) for level in (tags.UNIT, tags.PROBLEM)
    )
    return "problems" if units == problems else "solutions"


def moved_words(metrics: Mapping[str, float]) -> str:
    """solutions lost 98 (noise 21.3, p < .001), gained 12 (noise 20.0, p = .310)."""
    words = []
    for verb, part in (("lost", "shrunk"), ("gained", "expanded")):
        names = (part, f"expected_{part}", f"p_{part}_strength")
        count, noise, p = (metrics.get(getattr(tags.UNIT, name).tag, math.nan) for name in names)
        words.append(f"{verb} {_number(count, 0)} (noise {_number(noise, 1)}, {p_words(p)})")
    return f"{unit_words(metrics)} {', '.join(words)}"


def sure_words(metrics: Mapping[str, float]) -> str:
    """beyond chance one by one: 37 lost, none gained."""
    lost, gained = (metrics.get(metric.tag, math.nan) for metric in (tags.UNIT.shrunk_sure, tags.UNIT.expanded_sure))
    counts = [("none" if count == 0 else _number(count, 0)) for count in (lost, gained)]
    return f"beyond chance one by one: {counts[0]} lost, {counts[1]} gained"


def spelling_words(metrics: Mapping[str, float]) -> str:
    """, spellings lost 40 (p < .001); "" if they are not told apart. What noise alone would lose is not known."""
    if tags.SPELLING.shrunk.tag not in metrics:
        return ""
    lost, p = metrics[tags.SPELLING.shrunk.tag], metrics.get(tags.SPELLING.p_shrunk_strength.tag, math.nan)
    return f", spellings lost {_number(lost, 0)} ({p_words(p)})"


def _spellings(metrics: Mapping[str, float]) -> str:
    """The same as a sentence, and how many of those answers are still reached."""
    if not (words := spelling_words(metrics)):
        return ""
    return (
        f" S{words.removeprefix(', s')}, {_number(metrics[tags.SPELLING.respelled.tag], 0)} of answers still reached."
    )


def noise_rates(metrics: Mapping[str, float]) -> dict[str, float]:
    """SRR, NDR, SDS and NSCR of the counts that a second sample of the base is expected to give."""
    names = ("preserved", "shrunk", "expected_shrunk", "expected_expanded")
    kept, lost, noise_lost, noise_gained = (metrics.get(getattr(tags.UNIT, name).tag, math.nan) for name in names)
    rates = expected_metrics(kept + lost, noise_lost, noise_gained)
    return {getattr(tags.UNIT, name).tag: value for name, value in rates.items()}


def _number(value: float, digits: int) -> str:
    return "unknown" if math.isnan(value) else f"{value:.{digits}f}"


def _jsonable(metrics: Mapping[str, float]) -> dict[str, float | None]:
    return {tag: value if math.isfinite(value) else None for tag, value in metrics.items()}


def _floats(metrics: Mapping[str, float | None]) -> dict[str, float]:
    return {tag: math.nan if value is None else float(value) for tag, value in metrics.items()}


def three_digits(value: float | None) -> str:
    return "-" if value is None or math.isnan(value) else f"{value:.3f}"
