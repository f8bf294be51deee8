"""What a run measured, as its folder keeps it (`support.json`), and the table printed at its end."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from offleash.callbacks import tags
from offleash.callbacks.metrics import verdict_of
from offleash.eval.files import write_atomic
from offleash.eval.report.numbers import p_words
from offleash.eval.stats.passk import powers_of_two
from offleash.eval.stats.support import detection_limit

HISTORY = "support.json"
"""In the run's folder: the base's metrics and those of every measured step."""


def write_record(folder: Path, record: Mapping[str, Any]) -> None:
    """Undefined numbers become null."""
    steps = {str(step): _jsonable(metrics) for step, metrics in sorted(record["steps"].items())}
    record = {**record, "base": _jsonable(record["base"]), "steps": steps}
    write_atomic(folder / HISTORY, json.dumps(record, indent=1).encode())


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
    top = powers_of_two(k)[-1]
    rows = [
        ("pass@1", tags.pass_at(1).tag),
        (f"pass@{top}", tags.pass_at(top).tag),
        ("SRR  (fraction of base units retained)", tags.UNIT.srr.tag),
        ("NDR  (fraction of policy units that are new)", tags.UNIT.ndr.tag),
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
    lines = ["", f"{'':46}{'base':>7}{f'step {first}':>10}{f'step {last}':>10}"]
    for title, tag in rows:
        cells = [three_digits(metrics.get(tag)) for metrics in (base, history[first], history[last])]
        lines.append(f"{title:46}{cells[0]:>7}{cells[1]:>10}{cells[2]:>10}")
    samples, seconds = (history[last][metric.tag] for metric in (tags.SAMPLES, tags.SECONDS_TOTAL))
    lines += [
        f"{'seconds spent monitoring':46}{seconds:>27.1f}",
        "",
        f"At step {last}: {moved_words(history[last])}{spelling_words(history[last])}.",
        *leash_words(history[last]),
        f"A second sample of the base: {_expected(history[last], 'shrunk')} lost, "
        f"{_expected(history[last], 'expanded')} gained.",
        f"Support counts (problem, correct answer) pairs hit in k = {k} samples ({samples:.0f} samples per step);",
        f"a pair that was missed may still have probability {detection_limit(k):.2g} (95 % confidence).",
        f"Details:  tensorboard --logdir {folder}",
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


def moved_words(metrics: Mapping[str, float]) -> str:
    """lost 98 (p < .001, 37 beyond chance), gained 12 (p = .310, none beyond chance)."""
    words = []
    for verb, part in (("lost", "shrunk"), ("gained", "expanded")):
        names = (part, f"p_{part}_strength", f"{part}_sure")
        count, p, sure = (metrics.get(getattr(tags.UNIT, name).tag, math.nan) for name in names)
        found = "unknown" if math.isnan(sure) else f"{sure:.0f}" if sure else "none"
        words.append(f"{verb} {'-' if math.isnan(count) else f'{count:.0f}'} ({p_words(p)}, {found} beyond chance)")
    return ", ".join(words)


def spelling_words(metrics: Mapping[str, float]) -> str:
    """How many spellings were lost, and how many of those answers are still reached; "" if they are not told apart."""
    level = tags.SPELLING
    if level.shrunk.tag not in metrics:
        return ""
    lost, kept = metrics[level.shrunk.tag], metrics[level.respelled.tag]
    still = f", {kept:.0f} of them of answers still reached" if lost else ""
    return f"; spellings: NSCR {three_digits(metrics[level.nscr.tag])}, lost {lost:.0f}{still}"


def _expected(metrics: Mapping[str, float], part: str) -> str:
    expected = metrics.get(getattr(tags.UNIT, f"expected_{part}").tag, math.nan)
    return "unknown" if math.isnan(expected) else f"{expected:.1f}"


def _jsonable(metrics: Mapping[str, float]) -> dict[str, float | None]:
    return {tag: value if math.isfinite(value) else None for tag, value in metrics.items()}


def _floats(metrics: Mapping[str, float | None]) -> dict[str, float]:
    return {tag: math.nan if value is None else float(value) for tag, value in metrics.items()}


def three_digits(value: float | None) -> str:
    return "-" if value is None or math.isnan(value) else f"{value:.3f}"
