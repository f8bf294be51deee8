"""What `report_to` asked for gets our metrics under our own tags, and the figure and the table of each measured step.

The Trainer would put every tag under `train/`. TensorBoard also gets a layout: see `callbacks.charts`.
"""

import io
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from transformers.integrations import TensorBoardCallback, TrackioCallback, WandbCallback

from offleash.callbacks.policy.trainer_protocol import PolicyTrainer
from offleash.callbacks.policy.trl_seam import alert_by_trackio, log_to_trackio, log_to_wandb, tracker_module
from offleash.callbacks.tags import LOST_AND_GAINED
from offleash.eval.comparison.changes import Change
from offleash.eval.report.figure_style import image
from offleash.eval.report.sanitize import markdown_text, one_line

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMNS = ("moved", "problem", "answer", "base hits", "base samples", "policy hits", "policy samples")
MOST_ROWS = 200
"""Of units lost, and of units gained, in a table of W&B or trackio."""


class Media(NamedTuple):
    """What a measured step has besides numbers."""

    figures: Mapping[str, "Figure"]
    """By tag."""
    lost: Sequence[Change]
    gained: Sequence[Change]


class Destination(NamedTuple):
    """An open tracker."""

    name: str
    scalars: Callable[[Mapping[str, float], int], None]
    """Undefined numbers (NaN) leave a gap."""
    media: Callable[[Media, int], None]


class Trackers:
    """The trainer's reporting callbacks, written to directly. Only the main process has them open."""

    def __init__(self, trainer: PolicyTrainer) -> None:
        self.trainer = trainer

    @property
    def tensorboard(self) -> Any:
        """The SummaryWriter of the Trainer's TensorBoard callback; None if there is none or it is closed."""
        return next((cb.tb_writer for cb in self._callbacks(TensorBoardCallback)), None)

    def destinations(self) -> Iterator[Destination]:
        if (writer := self.tensorboard) is not None:
            yield Destination("TensorBoard", partial(to_tensorboard, writer), partial(media_to_tensorboard, writer))
        for name, kind, log in (("W&B", WandbCallback, log_to_wandb), ("trackio", TrackioCallback, log_to_trackio)):
            for callback in self._callbacks(kind):
                send, module = partial(log, callback), tracker_module(callback)
                yield Destination(name, partial(_to_log, send), partial(_media_to_log, send, module))

    def alert(self, title: str, text: str) -> None:
        """Where trackio tracks the run: an alert on its dashboard, and to its webhook if it has one."""
        for callback in self._callbacks(TrackioCallback):
            alert_by_trackio(callback, title, text)

    def _callbacks(self, kind: type) -> list[Any]:
        return [cb for cb in self.trainer.callback_handler.callbacks if isinstance(cb, kind)]


def to_tensorboard(writer: Any, metrics: Mapping[str, float], step: int) -> None:
    for tag, value in _finite(metrics).items():
        writer.add_scalar(tag, value, step)
    writer.flush()


def media_to_tensorboard(writer: Any, media: Media, step: int) -> None:
    for tag, figure in media.figures.items():
        writer.add_figure(tag, figure, step)
    writer.add_text(LOST_AND_GAINED.tag, lost_and_gained_table(media.lost, media.gained), step)
    writer.flush()


def _to_log(log: Callable[[dict[str, Any]], None], metrics: Mapping[str, float], step: int) -> None:
    log({**_finite(metrics), "train/global_step": step})


def _media_to_log(log: Callable[[dict[str, Any]], None], module: Any, media: Media, step: int) -> None:
    """W&B and trackio have an Image and a Table of the same arguments."""
    if module is None:
        return
    figures = {tag: module.Image(_drawn(figure), caption=f"step {step}") for tag, figure in media.figures.items()}
    # trackio renders the cells of a table as Markdown, W&B does not.
    text = markdown_text if hasattr(module, "Trace") else str
    rows = table_rows(media.lost, media.gained, text)
    table = module.Table(columns=list(COLUMNS), data=rows)
    log({**figures, LOST_AND_GAINED.tag: table, "train/global_step": step})


def _drawn(figure: "Figure") -> Any:
    from PIL import Image

    with Image.open(io.BytesIO(image(figure, "png"))) as picture:
        return picture.convert("RGB")


def table_rows(lost: Sequence[Change], gained: Sequence[Change], text: Callable[[str], str] = str) -> list[list[Any]]:
    """Rows of `COLUMNS`. Model text is untrusted: on one line, truncated, passed through `text`."""
    return [
        [word, *(text(one_line(part)) for part in change[:2]), *change[2:]]
        for word, changes in (("lost", lost), ("gained", gained))
        for change in changes[:MOST_ROWS]
    ]


def _finite(metrics: Mapping[str, float]) -> dict[str, float]:
    return {tag: value for tag, value in metrics.items() if math.isfinite(value)}


def lost_and_gained_table(lost: Sequence[Change], gained: Sequence[Change], limit: int = 20) -> str:
    """A Markdown table of units lost and gained. Model text is untrusted: escaped, on one line, truncated."""
    rows = ["| | problem | answer | base hits | policy hits |", "|---|---|---|---|---|"]
    for word, changes in (("lost", lost), ("gained", gained)):
        for change in changes[:limit]:
            problem, answer = (markdown_text(one_line(text)) for text in (change.problem_id, change.answer))
            hits = f"{change.base_hits}/{change.base_n} | {change.policy_hits}/{change.policy_n}"
            rows.append(f"| {word} | {problem} | {answer} | {hits} |")
        if len(changes) > limit:
            rows.append(f"| {word} | and {len(changes) - limit} more | | | |")
    return "\n".join(rows) if len(rows) > 2 else "nothing lost, nothing gained"
