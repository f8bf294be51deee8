"""Publishing a model: its card, with the support table and the pass@k figure, and the push to the hub.

TRL (1.16) writes the card, README.md, to the run's folder at every checkpoint and at the end. The support section is
added to it and the figure saved next to it; both are copied to the final model's folder. A push uploads the model and
its card only: the run's folder also holds every sample of held-out problems.
"""

import io
import json
import math
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi
from transformers import TrainingArguments

from offleash.callbacks import tags
from offleash.callbacks.charts import PAGE, pass_at_k_figure
from offleash.callbacks.metrics import leash_curve, pass_curve
from offleash.callbacks.summary import HISTORY, three_digits
from offleash.eval.errors import OffleashError
from offleash.eval.files import write_atomic
from offleash.eval.report.numbers import number, p_words
from offleash.eval.report.sanitize import markdown_text, one_line
from offleash.eval.stats.passk import powers_of_two
from offleash.eval.stats.support import detection_limit
from offleash.recipes import embedded_name

STAGE = "hub"
"""The subfolder of the run that a push during training uploads."""
CARD, FIGURE = "README.md", "pass_at_k.png"
PLACE = "## Training procedure"
"""The heading of TRL's card before which the section is inserted; without it, the section goes to the end."""
NO_NAME = "[None](https://huggingface.co/None)"
"""What TRL's card calls a base that is a folder."""


def base_name(model: str) -> str:
    """The base's name in the card: a hub id, or the last part of a folder's path, which stays private."""
    path = Path(model)
    return embedded_name(path) or (path.absolute().name if path.is_dir() else model)


def complete_card(folder: Path, task: str, model: str, step: int | None = None) -> None:
    """Add the base's name to the card in the run's folder, and the monitor's measurements if there are any.

    `step` is that of the weights; None: the last measured one.
    """
    card, history = (folder / CARD).read_text().replace(NO_NAME, _name(model)), folder / HISTORY
    if history.exists():
        record = json.loads(history.read_text())
        if step is not None:
            record["steps"] = {key: metrics for key, metrics in record["steps"].items() if int(key) <= step}
        write_atomic(folder / FIGURE, _figure(record))
        before, heading, after = card.partition(PLACE)
        card = f"{before.rstrip()}\n\n{support_section(record, task, model)}\n{heading}{after}"
    write_atomic(folder / CARD, card.encode())


def copy_card(folder: Path, target: Path) -> None:
    """Copy the card of a run and its figure into another folder."""
    for name in (CARD, FIGURE):
        if (folder / name).exists():
            shutil.copyfile(folder / name, target / name)


def support_section(record: Mapping[str, Any], task: str, model: str) -> str:
    """The last measured step and the base, in Markdown. Names are untrusted: escaped, on one line, shortened."""
    k, base, last = record["k"], record["base"], _last(record)
    metrics = record["steps"][last]
    top = powers_of_two(k)[-1]
    rows = {
        "pass@1": tags.pass_at(1).tag,
        f"pass@{top}": tags.pass_at(top).tag,
        "SRR: fraction of base units retained": tags.UNIT.srr.tag,
        "NDR: fraction of policy units that are new": tags.UNIT.ndr.tag,
        "SDS: harmonic mean of SRR and NDR": tags.UNIT.sds.tag,
        "NSCR: (gained - lost) / union": tags.UNIT.nscr.tag,
        "answer entropy (nats)": tags.ANSWER_ENTROPY.tag,
        "token entropy (nats)": record["token_entropy"],
    }
    table = [
        f"| {title} | {three_digits(base.get(tag))} | {three_digits(metrics.get(tag))} |" for title, tag in rows.items()
    ]
    for title, part in (("lost: only the base reached them", "shrunk"), ("gained: only this model did", "expanded")):
        table.insert(-2, f"| {title} (by noise alone) | - | {_moved(metrics, part)} |")
    return "\n".join(
        [
            "## Support",
            "",
            f"What this model reaches on held-out problems of {_name(task)}, against its base {_name(model)}: {k} "
            f"samples per problem, {metrics[tags.SAMPLES.tag]:.0f} in all.",
            "",
            f"| | base | step {int(last)} |",
            "|---|---|---|",
            *table,
            "",
            "Support counts (problem, correct answer) pairs hit at least once; a pair that was missed may still have "
            f"probability {detection_limit(k):.2g} (95 % confidence). Sampling alone moves pairs in "
            "and out: in brackets, how many a second sample of the base would move, and p of how firmly the pairs that "
            "moved were held. Beyond chance: taken one by one (Holm, 5 %).",
            "",
            f"![pass@k of base and policy]({FIGURE})",
            "",
        ]
    )


def _figure(record: Mapping[str, Any]) -> bytes:
    last = _last(record)
    base, policy = (pass_curve(metrics, record["k"]) for metrics in (record["base"], record["steps"][last]))
    image = io.BytesIO()
    line = leash_curve(record["steps"][last], record["k"])
    pass_at_k_figure(base, {int(last): policy}, line, size=PAGE).savefig(image, format="png", dpi=150)
    return image.getvalue()


def _last(record: Mapping[str, Any]) -> str:
    return max(record["steps"], key=int)


def _name(text: str) -> str:
    return markdown_text(one_line(text))


def _moved(metrics: Mapping[str, Any], part: str) -> str:
    """98 (27.3, p < .001); 41 beyond chance."""
    names = (part, f"expected_{part}", f"p_{part}_strength", f"{part}_sure")
    count, expected, p, sure = (metrics.get(getattr(tags.UNIT, name).tag) for name in names)
    if count is None:
        return "-"
    # Absent at k = 1, and in the record of an older run.
    noise = "unknown" if expected is None or math.isnan(expected) else number(expected)
    words = f"{count:.0f} ({noise}, {p_words(math.nan if p is None else p)})"
    return markdown_text(words if sure is None else f"{words}; {sure:.0f} beyond chance")


def repo_name(training: TrainingArguments) -> str:
    return training.hub_model_id or Path(training.output_dir).absolute().name


@contextmanager
def model_only(training: TrainingArguments) -> Iterator[None]:
    """Make the Trainer (transformers 5.17) upload a checkpoint's model and its card, not the run's whole folder."""
    folder = Path(training.output_dir)
    stage = folder / STAGE
    stage.mkdir(exist_ok=True)
    copy_card(folder, stage)
    training.output_dir = str(stage)
    try:
        yield
    finally:
        training.output_dir = str(folder)


def push_final(training: TrainingArguments, final: Path) -> None:
    """Upload the folder of the final model."""
    name, hub = repo_name(training), HfApi(token=training.hub_token)
    try:
        hub.upload_folder(
            repo_id=hub.create_repo(name, private=training.hub_private_repo, exist_ok=True).repo_id,
            folder_path=final,
            commit_message="End of training",
            revision=training.hub_revision,
        )
    except Exception as error:  # of any kind: the other processes wait for the outcome
        reason = " ".join(str(error).split())
        raise OffleashError(
            f"{final} is complete but could not be pushed to {name} ({reason}): try `hf upload {name} {final}`"
        ) from error
