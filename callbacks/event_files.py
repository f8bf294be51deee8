"""TensorBoard's event files after a kill: a resumed run must not show a step twice."""

import struct
from collections.abc import Iterator
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event

from offleash.eval.files import remove_leftovers, write_atomic

START_TAGS = {"args/text_summary", "model_config/text_summary", "custom_scalars__config__"}
"""Written again at every start."""


def trim_events(folder: Path, last_step: int) -> int:
    """Drop every event after `last_step` from the event files below `folder`; the number of events dropped.

    A killed run has logged steps after its last checkpoint, and the resumed run logs them again. The files are
    rewritten rather than purged at reading time, so that no reader sees a step twice. What every start writes
    (configuration texts, the layout) is dropped as well.
    """
    dropped = 0
    remove_leftovers(folder)
    for path in sorted(folder.rglob("events.out.tfevents.*")):
        frames = list(_frames(path.read_bytes()))
        kept = [frame for event, frame in frames if _stays(event, last_step)]
        if len(kept) == len(frames):
            continue
        write_atomic(path, b"".join(kept))
        dropped += len(frames) - len(kept)
    return dropped


def _stays(event: Event, last_step: int) -> bool:
    if event.HasField("file_version"):
        return True
    return event.step <= last_step and not any(value.tag in START_TAGS for value in event.summary.value)


def _frames(data: bytes) -> Iterator[tuple[Event, bytes]]:
    """The records of an event file with their framing (length, crc, event, crc); an incomplete last one is left out."""
    at = 0
    while at + 12 <= len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        end = at + 12 + length + 4
        if end > len(data):
            return
        yield Event.FromString(data[at + 12 : end - 4]), data[at:end]
        at = end
