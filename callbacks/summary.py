"""What a run prints last: step 0 against the last step, and where to look further."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

HISTORY = "support.json"
"""In the run's folder: the base's metrics and those of every measured step."""


def run_summary(record: Mapping[str, Any], folder: Path) -> str:
    """A small table from the run's history (what HISTORY holds), and the one command to look further."""
    history = {int(step): metrics for step, metrics in record["steps"].items()}
    base, k = record["base"], record["k"]
    first, last = min(history), max(history)
    top = 1 << (k.bit_length() - 1)
    rows = [
        ("pass@1", "pass_at_k/1"),
        (f"pass@{top}", f"pass_at_k/{top}"),
        ("SRR  (kept of the base's units)", "support/unit/srr"),
        ("NDR  (new among those reached)", "support/unit/ndr"),
        ("SDS  (harmonic mean of both)", "support/unit/sds"),
        ("NSCR (gained less lost)", "support/unit/nscr"),
        ("answer entropy (nats)", "entropy/answer"),
        ("token entropy (nats)", record["token_entropy"]),
    ]
    lines = ["", f"{'':34}{'base':>9}{f'step {first}':>11}{f'step {last}':>11}"]
    for title, tag in rows:
        cells = [_number(base.get(tag)), _number(history[first].get(tag)), _number(history[last].get(tag))]
        lines.append(f"{title:34}{cells[0]:>9}{cells[1]:>11}{cells[2]:>11}")
    samples = history[last]["monitor/samples"]
    lines += [
        f"{'seconds spent monitoring':34}{'':>9}{'':>11}{history[last]['monitor/seconds_total']:>11.1f}",
        "",
        f"Support counts (problem, correct answer) pairs hit in k = {k} samples ({samples:.0f} samples a step);",
        f"a pair that was missed may still have probability {history[last]['support/floor']:.2g} (95 % confidence).",
        f"Look further:  tensorboard --logdir {folder}",
        "",
    ]
    return "\n".join(lines)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
