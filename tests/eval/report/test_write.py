"""A report is written atomically, in the format of its suffix."""

import re
from pathlib import Path

import pytest

from offleash.eval.comparison.result import Comparison
from offleash.eval.errors import ConfigError
from offleash.eval.report.write import write_report


@pytest.mark.parametrize(
    ("name", "format", "begins"),
    [
        ("r.html", None, "<!doctype html>"),
        ("r.MD", None, "# "),
        ("r.tex", None, "% "),
        ("r.json", None, "{"),
        ("r.txt", None, "one compared with one"),
        ("r.txt", "json", "{"),
    ],
)
def test_the_format_follows_the_suffix_unless_it_is_given(
    pair: Comparison, tmp_path: Path, name: str, format: str | None, begins: str
) -> None:
    path = write_report(pair, str(tmp_path / name), format=format)
    assert path == tmp_path / name
    assert path.read_text().startswith(begins)
    assert [file.name for file in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize(
    ("name", "format", "named"),
    [("r.pdf", None, "r.pdf"), ("r.html", "pdf", "'pdf'"), ("no/r.html", None, "no"), ("r", None, ".html")],
)
def test_what_cannot_be_written_is_a_config_error(
    pair: Comparison, tmp_path: Path, name: str, format: str | None, named: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(named)):
        write_report(pair, tmp_path / name, format=format)
    assert not list(tmp_path.iterdir())
