"""The numbers of the analysis reach every format; nothing a name holds can act there."""

import base64
import hashlib
import json
import re
from html.parser import HTMLParser

import pytest

from offleash.eval.report.numbers import estimate, share
from offleash.eval.report.record import json_text
from offleash.train.variants.analysis import analyze
from offleash.train.variants.report import described, html_report, markdown_report, text_report
from offleash.train.variants.results import METRICS
from offleash.train.variants.tables import tables


@pytest.fixture(scope="module")
def analysis(full_sweep):
    return analyze(full_sweep.runs)


@pytest.fixture(scope="module")
def report(full_sweep, analysis):
    return described(full_sweep, analysis)


@pytest.fixture(scope="module")
def page(report):
    return html_report(report)


def test_the_first_table_has_each_variant_with_its_interval(full_sweep, analysis):
    table = tables(full_sweep, analysis)[0]
    rows = {row[0]: row for row in table.rows}
    assert list(rows)[:3] == ["base", "plain (control)", "low_lr (control)"]
    for variant in analysis.variants:
        row = rows[f"{variant.name} (control)" if variant.is_control else variant.name]
        assert row[table.header.index("NSCR")] == estimate(variant.estimates["nscr"])
    focal = next(v for v in analysis.variants if v.name == "pass_at_k")
    at = table.header.index("plain at equal pass@1")
    assert rows["pass_at_k"][at] == f"{share(focal.early_stop.estimates['nscr'].value)} (3)"
    starts = {run.seed: run.first["nscr"] for run in full_sweep.runs}
    start = sum(starts.values()) / len(starts)
    assert rows["base"][table.header.index("NSCR")] == share(start)
    assert [rows[name][-1] for name in ("base", "pass_at_k", "focal")] == ["–", "51,200", "51,200 + 32,768"]


def test_every_table_has_cells_for_its_header(full_sweep, analysis):
    for table in tables(full_sweep, analysis):
        assert {len(row) for row in table.rows} == {len(table.header)}, table.name


@pytest.mark.parametrize("name", ["text", "markdown", "html"])
def test_every_format_tells_that_nothing_is_judged_missing_runs_and_what_words_mean(name, page, report):
    written = {"text": text_report(report), "markdown": markdown_report(report)}
    text = " ".join({**written, "html": page}[name].split())
    assert "no verdict follows" in text
    assert text.count("focal seed 3") == 1
    assert "out of memory" in text
    assert ("plain stopped early, at the variant" in text) == (name != "text")
    text = re.sub(r"<(style|script)\b[^>]*>.*?</\1>", "", text)
    assert "`" not in text
    assert not re.search(r"\b(better|expands|no worse)\b", text)


def test_a_hostile_name_is_text_on_the_page(page):
    found = set()

    class Tags(HTMLParser):
        def handle_starttag(self, tag, attrs):
            found.add(tag)

    Tags().feed(page)
    assert "b" not in found
    (script,) = re.findall(r'<script type="module">(.*?)</script>', page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}';" in page
    assert "wild" not in script
    assert "&lt;b&gt;wild" in page
    assert "default-src 'none'" in page
    assert "prefers-color-scheme: dark" in page


def test_json_has_the_documented_keys_and_no_nan(report, analysis):
    record = json.loads(json_text(report.record))
    assert set(record) == {"format", "k", "base_pool", "confidence", "warnings", "missing", "base", "variants", "runs"}
    plain, low_lr, *_ = record["variants"]
    assert set(plain["estimates"]) == set(METRICS)
    assert plain["against_plain"] is None
    difference = low_lr["against_plain"]["nscr"]
    assert set(difference) == {"value", "low", "high", "n", "p", "method"}
    assert difference["p"] == analysis.variants[1].against_plain["nscr"].p
    assert set(low_lr["since_start"]) == {"value", "low", "high", "n"}
    assert len(record["runs"]) == 21
    assert record["runs"][0]["rollouts"] == 51200
    assert record["runs"][0]["steps"] == [0, 50, 100]
