"""`offleash metrics`: the table of tags, printed without torch."""

import subprocess
import sys

import pytest

from offleash.callbacks import tags
from offleash.train.cli import main
from offleash.train.explorers import metrics as training


def test_every_tag_is_printed_with_its_unit_meaning_and_function(capsys):
    assert main(["metrics"]) == 0
    text = capsys.readouterr().out
    for metric in (*tags.METRICS, *training.METRICS):
        assert f"{metric.tag}  [{metric.unit}]  offleash.{metric.made_by}\n    {metric.meaning}\n" in text
        assert not metric.base or f"{metric.base}  [" in text


def test_a_text_selects_tags(capsys):
    assert main(["metrics", "support/unit/nscr"]) == 0
    found = [line.split()[0] for line in capsys.readouterr().out.splitlines()[::2]]
    assert found == ["support/unit/nscr", "support/unit/nscr_hits5"]
    assert main(["metrics", "unit/ncsr"]) == 2
    assert "'unit/ncsr'" in capsys.readouterr().err


def test_the_markdown_table_has_a_row_for_each_tag(capsys):
    assert main(["metrics", "--markdown"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 + sum(1 + bool(metric.base) for metric in (*tags.METRICS, *training.METRICS))
    assert {line.count("|") for line in lines} == {5}


@pytest.mark.parametrize("heavy", ["torch", "transformers", "pyarrow"])
def test_the_table_is_printed_without_heavy_imports(heavy):
    code = (
        f"import sys; sys.modules[{heavy!r}] = None; from offleash.train.cli import main; sys.exit(main(['metrics']))"
    )
    assert subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL, check=False).returncode == 0
