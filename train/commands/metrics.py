"""List every metric that a run logs besides TRL's own: tag, unit, meaning and the function that computes it.

examples:
    offleash metrics                     all of them
    offleash metrics support/unit        only tags that contain this text
    offleash metrics --markdown          the table as Markdown
"""

import re
from collections.abc import Sequence

from offleash.callbacks import tags
from offleash.callbacks.tags import Metric
from offleash.eval.console import say
from offleash.eval.errors import ConfigError
from offleash.eval.flags import command_parser
from offleash.train.explorers import metrics as training


def main(argv: list[str]) -> int:
    parser = command_parser("metrics", __doc__)
    parser.add_argument("text", nargs="?", default="", help="only tags that contain this text")
    parser.add_argument("--markdown", action="store_true", help="print a Markdown table")
    options = parser.parse_args(argv)
    found = [metric for metric in all_metrics() if options.text in metric.tag or _fills(options.text, metric.tag)]
    if not found:
        raise ConfigError(f"no tag contains {options.text!r}: `offleash metrics` lists them all")
    say((as_markdown if options.markdown else as_text)(found))
    return 0


def _fills(text: str, pattern: str) -> bool:
    """Whether `pass_at_k/64` is a tag of the pattern `pass_at_k/{k}`."""
    return "{" in pattern and re.fullmatch(re.sub(r"\\{\w+\\}", "[^/]+", re.escape(pattern)), text) is not None


def all_metrics() -> list[Metric]:
    """Both parts of the table; the base's tags have rows of their own."""
    rows = []
    for metric in (*tags.METRICS, *training.METRICS):
        rows.append(metric)
        if metric.base:
            meaning = f"the same for the base, at the first and last measured step: {metric.meaning}"
            rows.append(metric._replace(tag=metric.base, meaning=meaning))
    return rows


def as_text(metrics: Sequence[Metric]) -> str:
    return "\n".join(f"{m.tag}  [{m.unit}]  offleash.{m.made_by}\n    {m.meaning}" for m in metrics)


def as_markdown(metrics: Sequence[Metric]) -> str:
    rows = [f"| `{m.tag}` | {m.unit} | {m.meaning} | `offleash.{m.made_by}` |" for m in metrics]
    return "\n".join(["| tag | unit | meaning | function |", "|---|---|---|---|", *rows])
