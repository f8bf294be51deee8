"""Write a comparison as a report file; the format follows the file's suffix."""

from collections.abc import Callable, Sequence
from pathlib import Path

from offleash.eval.comparison.result import Comparison
from offleash.eval.errors import ConfigError
from offleash.eval.files import check_writable, write_atomic
from offleash.eval.report.latex import latex_report
from offleash.eval.report.markup import markdown_report
from offleash.eval.report.page import html_report
from offleash.eval.report.record import json_report
from offleash.eval.report.tables import Table
from offleash.eval.report.text import text_report

FORMATS: dict[str, Callable[[Comparison, Sequence[Table]], str]] = {
    "json": json_report,
    "markdown": markdown_report,
    "latex": latex_report,
    "html": html_report,
    "text": text_report,
}
SUFFIXES = {".json": "json", ".md": "markdown", ".tex": "latex", ".html": "html", ".txt": "text"}


def write_report(
    comparison: Comparison,
    path: str | Path,
    *,
    format: str | None = None,
    extra_tables: Sequence[Table] = (),
) -> Path:
    """Write `comparison` to `path` and return the path.

    Args:
        comparison: what `compare` returned.
        path: the file, in an existing folder. It is replaced atomically.
        format: `html`, `markdown`, `latex`, `json` or `text`. By default it follows the suffix: `.html`, `.md`,
            `.tex`, `.json` or `.txt`.
        extra_tables: tables to append, such as those of `offleash.eval.report.paper.published_tables`.

    Raises:
        ConfigError: the format is unknown, or the folder does not exist.

    >>> from offleash.eval import Sampling, compare, load_task, sample_pool, write_report
    >>> task = load_task("countdown", split="probe", n=4)
    >>> settings = {"k": 8, "sampling": Sampling(max_new_tokens=20), "progress": False}
    >>> base = sample_pool("lab", task, "pools/base", **settings)
    >>> policy = sample_pool("lab", task, "pools/policy", seed=1, **settings)
    >>> path = write_report(compare(base, policy, resamples=200), "report.md")
    >>> path.read_text().splitlines()[0]
    '# policy compared with base (countdown)'
    """
    path = Path(path)
    write = FORMATS[check_report_path(path, format)]
    write_atomic(path, write(comparison, extra_tables).encode("utf-8", "replace"))
    return path


def check_report_path(path: Path, format: str | None = None) -> str:
    """The format in which `path` would be written. Raises ConfigError if it cannot be written."""
    name = SUFFIXES.get(path.suffix.lower()) if format is None else format
    if name is None:
        raise ConfigError(f"cannot infer the format of {path}: use the suffix {', '.join(SUFFIXES)}, or pass `format`")
    if name not in FORMATS:
        raise ConfigError(f"unknown report format {name!r}; available: {', '.join(FORMATS)}")
    check_writable(path)
    return name
