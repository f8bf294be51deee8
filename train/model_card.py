"""The support table and the pass@k figure in a model's card: what the training kept and lost, where the weights are.

TRL (1.16) writes the card, README.md, into the run's folder: at every checkpoint, and at the end. The section and the
figure go there with it, and both are copied beside the final model, which a push to the hub uploads.
"""

import io
import json
import math
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from offleash.callbacks.summary import HISTORY
from offleash.callbacks.tensorboard import pass_at_k_figure
from offleash.eval.files import write_atomic
from offleash.eval.report.numbers import number, p_words
from offleash.eval.report.sanitize import markdown_text, one_line
from offleash.eval.stats.passk import powers_of_two
from offleash.train.recipe.config import LAB_MODEL
from offleash.train.run_folder.changes import LAB_FOLDER

CARD, FIGURE = "README.md", "pass_at_k.png"
PLACE = "## Training procedure"
"""The heading of TRL's card that the section stands before; without it, it stands at the end."""
NO_NAME = "[None](https://huggingface.co/None)"
"""What TRL's card calls a base that is a folder."""


def base_name(model: str) -> str:
    """What a card calls the base: a hub id as it is; of a folder its name only, its place is nobody's business."""
    path = Path(model)
    if path.parts[-3:] == LAB_FOLDER:
        return LAB_MODEL
    return path.absolute().name if path.is_dir() else model


def name_base(folder: Path, model: str) -> None:
    card = (folder / CARD).read_text()
    if NO_NAME in card:
        write_atomic(folder / CARD, card.replace(NO_NAME, _name(model)).encode())


def add_support(folder: Path, task: str, model: str) -> None:
    """Put what the monitor measured into the card in the run's folder; nothing if it measured nothing."""
    history = folder / HISTORY
    if not history.exists():
        return
    record = json.loads(history.read_text())
    write_atomic(folder / FIGURE, _figure(record))
    before, heading, after = (folder / CARD).read_text().partition(PLACE)
    section = support_section(record, task, model)
    write_atomic(folder / CARD, f"{before.rstrip()}\n\n{section}\n{heading}{after}".encode())


def copy_card(folder: Path, target: Path) -> None:
    """The card of a run and its figure, beside the final model."""
    for name in (CARD, FIGURE):
        if (folder / name).exists():
            shutil.copyfile(folder / name, target / name)


def support_section(record: Mapping[str, Any], task: str, model: str) -> str:
    """Base against the last measured step, in Markdown. Names come from outside: escaped, on one line, cut short."""
    k, base, last = record["k"], record["base"], _last(record)
    metrics = record["steps"][last]
    top = powers_of_two(k)[-1]
    rows = {
        "pass@1": "pass_at_k/1",
        f"pass@{top}": f"pass_at_k/{top}",
        "SRR: kept of what the base reached": "support/unit/srr",
        "NDR: new among what is reached": "support/unit/ndr",
        "SDS: harmonic mean of both": "support/unit/sds",
        "NSCR: gained less lost": "support/unit/nscr",
        "answer entropy (nats)": "entropy/answer",
        "token entropy (nats)": record["token_entropy"],
    }
    table = [f"| {title} | {_number(base.get(tag))} | {_number(metrics.get(tag))} |" for title, tag in rows.items()]
    for title, part in (("lost: only the base reached them", "shrunk"), ("gained: only this model did", "expanded")):
        table.insert(-2, f"| {title} (by noise alone) | - | {_moved(metrics, part)} |")
    return "\n".join(
        [
            "## Support",
            "",
            f"What this model reaches on held-out problems of {_name(task)}, against its base {_name(model)}: {k} "
            f"samples per problem, {metrics['monitor/samples']:.0f} in all.",
            "",
            f"| | base | step {int(last)} |",
            "|---|---|---|",
            *table,
            "",
            "Support counts (problem, correct answer) pairs hit at least once; a pair that was missed may still have "
            f"probability {metrics['support/floor']:.2g} (95 % confidence). Sampling alone moves pairs in and out: in "
            "brackets, how many it would if nothing had changed, and the exact p of a count this large.",
            "",
            f"![pass@k of base and policy]({FIGURE})",
            "",
        ]
    )


def _figure(record: Mapping[str, Any]) -> bytes:
    last = _last(record)
    base, policy = (
        {k: metrics[f"pass_at_k/{k}"] for k in powers_of_two(record["k"])}
        for metrics in (record["base"], record["steps"][last])
    )
    image = io.BytesIO()
    pass_at_k_figure(base, policy, int(last)).savefig(image, format="png", dpi=150)
    return image.getvalue()


def _last(record: Mapping[str, Any]) -> str:
    return max(record["steps"], key=int)


def _name(text: str) -> str:
    return markdown_text(one_line(text))


def _moved(metrics: Mapping[str, Any], part: str) -> str:
    """98 (27.3, p < .001)."""
    count, expected, p = (metrics.get(f"support/unit/{start}{part}") for start in ("", "expected_", "p_"))
    if count is None:
        return "-"
    expected, p = (math.nan if value is None else value for value in (expected, p))
    noise = "unknown" if math.isnan(expected) else f"{number(expected)}, {p_words(p)}"
    return markdown_text(f"{count:.0f} ({noise})")


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
