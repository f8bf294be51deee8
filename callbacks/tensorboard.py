"""TensorBoard: names of our own, a page that opens on the picture that matters, and no event twice after a resume."""

import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event

from offleash.callbacks.metrics import base_tag
from offleash.eval.comparison.changes import Change
from offleash.eval.files import remove_leftovers, write_atomic
from offleash.eval.report.figure_style import LINES, styled

START_TAGS = {"args/text_summary", "model_config/text_summary", "custom_scalars__config__"}
MARKS = frozenset("&<>\"'\\`*_{}[]()#+-!|~")
"""What Markdown or HTML could read as more than text."""


def custom_layout(token_entropy_tag: str, k: int) -> dict[str, dict[str, list[Any]]]:
    """The custom-scalars page: the leash on top (pass@1 and NSCR), both entropies on one chart below."""

    def lines(*tags: str) -> list[Any]:
        return ["Multiline", [f"^{tag}$" for tag in tags]]

    return {
        "The leash": {
            "pass@1, policy and base": lines("pass_at_k/1", base_tag("pass_at_k/1")),
            "NSCR, units and problems": lines("support/unit/nscr", "support/problem/nscr"),
            f"pass@{k}, policy and base": lines(f"pass_at_k/{k}", base_tag(f"pass_at_k/{k}")),
            "units lost and gained": lines(
                "support/unit/shrunk",
                "support/unit/expanded",
                "support/unit/expected_shrunk",
                "support/unit/expected_expanded",
            ),
        },
        "Entropy": {
            "token and answer entropy (nats)": lines(
                token_entropy_tag, "entropy/answer", base_tag(token_entropy_tag), base_tag("entropy/answer")
            ),
            "SRR and NDR": lines("support/unit/srr", "support/unit/ndr"),
        },
    }


@styled()
def pass_at_k_figure(base: Mapping[int, float], policy: Mapping[int, float], step: int) -> Any:
    """Base against policy over k, on a logarithmic axis."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.4, 4.0))
    axes = figure.subplots()
    axes.plot(list(base), list(base.values()), **LINES["base"], label="base")
    axes.plot(list(policy), list(policy.values()), **LINES["policy"], label=f"policy, step {step}")
    axes.set_xscale("log", base=2)
    axes.set_xticks(list(base), [str(k) for k in base])
    axes.set(xlabel="k", ylabel="pass@k", ylim=(0, 1.02))
    axes.legend(loc="lower right")
    return figure


def lost_and_gained_table(lost: Sequence[Change], gained: Sequence[Change], limit: int = 20) -> str:
    """A Markdown table of units lost and gained. Model text is hostile: escaped, on one line, cut short."""
    rows = ["| | problem | answer | base hits | policy hits |", "|---|---|---|---|---|"]
    for word, changes in (("lost", lost), ("gained", gained)):
        for change in changes[:limit]:
            rows.append(
                f"| {word} | {_cell(change.problem_id)} | {_cell(change.answer)} | {change.base_hits}/{change.base_n} "
                f"| {change.policy_hits}/{change.policy_n} |"
            )
        if len(changes) > limit:
            rows.append(f"| {word} | and {len(changes) - limit} more | | | |")
    return "\n".join(rows) if len(rows) > 2 else "nothing lost, nothing gained"


def _cell(text: str, limit: int = 80) -> str:
    text = " ".join(text.split())
    text = text if len(text) <= limit else text[: limit - 1] + "…"
    return "".join(f"&#{ord(c)};" if c in MARKS else c for c in text)


def trim_events(folder: Path, last_step: int) -> int:
    """Drop every event after `last_step` from the event files below `folder`; the number of events dropped.

    A killed run has logged steps that its last checkpoint does not know, and the resumed run logs them again. The files
    are rewritten rather than purged at reading time, so that no reader can see a step twice. What every start writes
    anew (configuration texts, the layout) is dropped as well.
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
