"""TensorBoard's event files after a kill: a resumed run must not show a step twice."""

import struct
from collections.abc import Iterator
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.summary.writer.record_writer import masked_crc32c

from offleash.eval.console import say
from offleash.eval.files import remove_leftovers, write_atomic

EVENT_FILES = "events.out.tfevents.*"
START_TAGS = {"args/text_summary", "model_config/text_summary", "custom_scalars__config__"}
"""Written again at every start."""


def trim_events(folder: Path, last_step: int) -> int:
    """Drop every event after `last_step` from the event files in `folder`; the number of events dropped.

    A killed run has logged steps after its last checkpoint, and the resumed run logs them again. The files are
    rewritten rather than purged at reading time, so that no reader sees a step twice. What every start writes
    (configuration texts, the layout) is dropped as well.
    """
    dropped = 0
    remove_leftovers(folder)
    for path in sorted(path for path in folder.glob(EVENT_FILES) if path.is_file()):
        data = path.read_bytes()
        frames = list(event_frames(data))
        kept = [frame for event, frame in frames if event is not None and _stays(event, last_step)]
        if len(kept) == len(frames):
            continue
        if any(event is None for event, _ in frames):
            spare = path.with_name(f"damaged-{path.name.removeprefix('events.out.tfevents.')}")  # TensorBoard skips it
            write_atomic(spare, data)
            say(f"offleash: WARNING: {path} is damaged: what can be read stays, all of it is in {spare.name}")
        write_atomic(path, b"".join(kept))
        dropped += len(frames) - len(kept)
    return dropped


def _stays(event: Event, last_step: int) -> bool:
    if event.HasField("file_version"):
        return True
    return event.step <= last_step and not any(value.tag in START_TAGS for value in event.summary.value)


def event_frames(data: bytes) -> Iterator[tuple[Event | None, bytes]]:
    """The records of an event file with their framing (length, crc, event, crc); an incomplete last one is left out.

    The event is None where a record is damaged; after a damaged length nothing can be found.
    """
    at = 0
    while at + 12 <= len(data):
        length, check = struct.unpack_from("<QI", data, at)
        if check != masked_crc32c(data[at : at + 8]):
            yield None, data[at:]
            return
        end = at + 12 + length + 4
        if end > len(data):
            return
        body, (check,) = data[at + 12 : end - 4], struct.unpack_from("<I", data, end - 4)
        yield Event.FromString(body) if check == masked_crc32c(body) else None, data[at:end]
        at = end
