"""The TensorBoard page of a watched run: what the callback would have logged, as a function of what was measured.

Steps may be measured in any order and by several processes, and TensorBoard drops what follows a step back in one file.
So the event file is not appended to: it is written anew, in the order of steps, under a later name, and the former one
emptied (not removed: a TensorBoard that reads it would wait for it for ever). Events of steps that it had already are
taken over as they are. The first event of a file tells a TensorBoard that knows the former one to forget it. A kill
leaves a complete file, the former or the new one; if both are left, the next call empties the former.
"""

import math
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event

from offleash.callbacks import tags
from offleash.callbacks.charts import custom_layout, lay_out
from offleash.callbacks.event_files import event_frames
from offleash.callbacks.report import Metrics, base_scalars, run_figures, step_scalars
from offleash.callbacks.trackers import lost_and_gained_table, to_tensorboard
from offleash.eval.comparison.changes import changes
from offleash.eval.files import write_atomic
from offleash.eval.pool.counts import Hits
from offleash.eval.stats.passk import powers_of_two

NAME = "events.out.tfevents.{number:010d}.watch"

Frames = dict[int, list[bytes]]
"""Events with their framing, by step."""


class Page:
    """The event file in a folder. `k` and `temperature` are those of the samples."""

    def __init__(self, folder: Path, k: int, temperature: float) -> None:
        self.folder, self.k, self.temperature = folder, k, temperature

    def is_of(self, steps: Mapping[int, Metrics]) -> bool:
        """Whether it shows exactly these steps."""
        full = [path for path in self._files() if path.stat().st_size]
        return len(full) == 1 and set(self._shown(full[0])) == set(steps)

    def write(
        self, task: str, base: Metrics, base_hits: Hits, steps: Mapping[int, Metrics], hits_of: Callable[[int], Hits]
    ) -> None:
        """Show these steps. `hits_of` is asked for the hits of those that are not shown yet."""
        files = self._files()
        shown = self._shown(files[-1]) if files else {}
        frames: Frames = {step: shown[step] for step in steps if step in shown}
        new = {step: (steps[step], hits_of(step)) for step in steps if step not in shown}
        head, constants = self._made(lambda writer: self._write_frame(writer, task, base, steps))
        _, drawn = self._made(lambda writer: self._write_steps(writer, base, base_hits, new))
        number = int(files[-1].name.split(".")[3]) + 1 if files else 1
        body = [
            frame
            for step in sorted({*frames, *drawn, *constants})
            for frame in (*frames.get(step, drawn.get(step, [])), *constants.get(step, []))
        ]
        self.folder.mkdir(parents=True, exist_ok=True)
        write_atomic(self.folder / NAME.format(number=number), b"".join((*head, *body)))
        for path in files[:-1]:
            path.unlink(missing_ok=True)
        for path in files[-1:]:
            write_atomic(path, b"")

    def _files(self) -> list[Path]:
        return sorted(self.folder.glob("events.out.tfevents.*.watch"))

    def _write_frame(self, writer: Any, task: str, base: Metrics, steps: Mapping[int, Metrics]) -> None:
        """What depends on which steps there are: the layout, the constants of the run, the figure."""
        logged = [self._scalars(base, metrics) for metrics in steps.values()]
        known = {tag for one in logged for tag, value in one.items() if math.isfinite(value)}
        lay_out(writer, custom_layout(self.temperature, powers_of_two(self.k)[-1], known=known))
        if steps:
            first, last = min(steps), max(steps)
            to_tensorboard(writer, {m.tag: steps[first][m.tag] for m in tags.ONCE}, first)
            for tag, figure in run_figures(base, steps, self.k, task).items():
                writer.add_figure(tag, figure, last)

    def _write_steps(
        self, writer: Any, base: Metrics, base_hits: Hits, new: Mapping[int, tuple[Metrics, Hits]]
    ) -> None:
        for step, (metrics, hits) in sorted(new.items()):
            to_tensorboard(writer, self._scalars(base, metrics), step)
            writer.add_text(tags.LOST_AND_GAINED.tag, lost_and_gained_table(*changes(base_hits, hits)), step)

    def _scalars(self, base: Metrics, metrics: Metrics) -> dict[str, float]:
        return step_scalars(metrics, is_first=False) | base_scalars(base, self.k, self.temperature)

    def _made(self, write: Callable[[Any], None]) -> tuple[list[bytes], Frames]:
        """The events that `write` gives a SummaryWriter: those of every start, and the others by step."""
        from torch.utils.tensorboard import SummaryWriter

        folder = Path(tempfile.mkdtemp())
        try:
            with closing(SummaryWriter(str(folder), purge_step=0)) as writer:
                write(writer)
            (file,) = folder.iterdir()
            return _sorted(file.read_bytes())
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _shown(self, file: Path) -> Frames:
        """What a file has of each step, without the constants, which may belong to other steps by now.

        Nothing of a damaged file: all of it is made anew.
        """
        again = {metric.tag for metric in (*tags.ONCE, tags.PASS_AT_K_FIGURE, tags.MOVES_FIGURE)}
        data = file.read_bytes()
        if any(event is None for event, _ in event_frames(data)):
            return {}
        return _sorted(data, lambda event: any(value.tag in again for value in event.summary.value))[1]


def _sorted(data: bytes, is_left_out: Callable[[Event], bool] = lambda event: False) -> tuple[list[bytes], Frames]:
    head: list[bytes] = []
    frames: Frames = defaultdict(list)
    for event, frame in event_frames(data):
        if event is None or is_left_out(event):
            continue
        if any(value.tag != _LAYOUT for value in event.summary.value):
            frames[event.step].append(frame)
        else:
            head.append(frame)
    return head, dict(frames)


_LAYOUT = "custom_scalars__config__"
