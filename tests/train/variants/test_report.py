"""The numbers of the analysis reach every format; nothing a name holds can act there."""

import json
import math
import re
from html.parser import HTMLParser

import numpy as np
import pytest

from offleash.eval.report.numbers import estimate, share
from offleash.train.variants.analysis import analyze
from offleash.train.variants.report import html_report, json_report, markdown_report, text_report
from offleash.train.variants.results import METRICS, Measured
from offleash.train.variants.tables import summary, tables


@pytest.fixture(scope="module")
def analysis(full_sweep):
    return analyze(full_sweep.runs, margin=0.05)


@pytest.fixture(scope="module")
def page(full_sweep, analysis):
    return html_report(full_sweep, analysis)


def test_the_first_table_has_each_variant_with_its_verdict_and_interval(full_sweep, analysis):
    table = tables(full_sweep, analysis)[0]
    rows = {row[0]: row for row in table.rows}
    assert list(rows)[:3] == ["base", "plain (control)", "low_lr (control)"]
    for variant in analysis.variants:
        row = rows[f"{variant.name} (control)" if variant.is_control else variant.name]
        assert row[table.header.index("verdict")] == variant.verdict.word
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
def test_every_format_tells_verdicts_missing_runs_and_what_words_mean(name, page, full_sweep, analysis):
    written = {"text": text_report(full_sweep, analysis), "markdown": markdown_report(full_sweep, analysis)}
    text = " ".join({**written, "html": page}[name].split())
    assert "1 of 4 variants better" in text
    assert "corrected for 4 variants" in text
    assert "focal seed 3" in text
    assert "out of memory" in text
    assert "better: NSCR is above" in text.replace("&#58;", ":")


def test_a_hostile_name_is_text_on_the_page(page):
    found = set()

    class Tags(HTMLParser):
        def handle_starttag(self, tag, attrs):
            found.add(tag)

    Tags().feed(page)
    assert "b" not in found
    assert "script" not in found
    assert "&lt;b&gt;wild" in page
    assert "default-src 'none'" in page
    assert "prefers-color-scheme: dark" in page


def test_json_has_the_documented_keys_and_no_nan(full_sweep, analysis):
    record = json.loads(json_report(full_sweep, analysis))
    assert set(record) == {
        *(
            "format",
            "k",
            "base_pool",
            "margin",
            "confidence",
            "family",
            "warnings",
            "missing",
            "base",
            "variants",
            "runs",
        ),
    }
    plain, low_lr, *_ = record["variants"]
    assert set(plain["estimates"]) == set(METRICS)
    assert plain["against"].keys() == {"placebo", "low_lr"}
    difference = low_lr["against"]["plain"]["nscr"]
    assert set(difference) == {"value", "low", "high", "n", "lower_bound", "p", "method"}
    ours = analysis.variants[1].against["plain"]["nscr"]
    assert difference["p"] == ours.p
    assert low_lr["holm_p"]["nscr"] is None
    assert math.isnan(analysis.variants[1].holm_p["nscr"])
    assert low_lr["better_p"] is None
    assert 0 < next(v for v in record["variants"] if v["name"] == "pass_at_k")["better_p"] < 0.05
    assert set(low_lr["since_start"]) == {"value", "low", "high", "n"}
    assert len(record["runs"]) == 21
    assert record["runs"][0]["rollouts"] == 51200
    assert record["runs"][0]["steps"] == [0, 50, 100]


@pytest.mark.parametrize(("seeds", "family"), [(3, 22), (8, 22), (5, 1)])
def test_the_difference_that_is_said_to_be_needed_is_the_one_that_just_passes(seeds, family):
    def analysis(times):
        """A variant that is that many standard deviations above plain and the controls, among so many others."""
        spread = [i - (seeds - 1) / 2 for i in range(seeds)]
        scale = 0.01 / float(np.std(spread, ddof=1))
        runs = []
        for name, shift in (("plain", 0), ("placebo", 0), ("low_lr", 0), ("good", times * 0.01)):
            for seed in range(seeds):
                nscr = -0.5 + shift + (scale * spread[seed] if name == "good" else 0)
                passed = 0.6 + 1e-4 * seed if name == "good" else 0.5
                last = {"pass_at_1": passed, "nscr": nscr}
                runs.append(Measured(name, seed, (0, 100), ({"pass_at_1": 0.3, "nscr": 0.0}, last)))
        return analyze(runs, tried=[f"other{i}" for i in range(family - 1)])

    (told,) = summary(analysis(1))
    needed = float(re.search(rf"with {seeds} seeds a mean difference is significant at ([\d.]+) of its", told)[1])
    verdicts = [analysis(needed + off).variants[-1].verdict.word for off in (-0.06, 0.06)]
    assert verdicts == ["no", "better"]
