"""The pages of `offleash compare` and `offleash variants` in Chromium: read, printed, on a phone, text inert."""

import re

import numpy as np
import pytest

from offleash.eval.comparison.compare import compare
from offleash.eval.pool.testing import make_pool
from offleash.eval.report.write import write_report
from offleash.train.variants.analysis import analyze
from offleash.train.variants.report import described, html_report
from offleash.train.variants.results import METRICS, Measured, Sweep

pytestmark = pytest.mark.browser


@pytest.fixture
def page(chromium):
    """A page that fails the test if a script fails, a dialog opens or anything is asked for."""
    page, wrong = chromium.new_page(), []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda message: wrong.append(message.text))
    page.on("dialog", lambda dialog: wrong.append(dialog.message))
    page.on("request", lambda request: wrong.append(request.url) if not request.url.startswith("file:") else None)
    yield page
    page.close()
    assert wrong == []


@pytest.fixture(scope="module")
def comparison_page(tmp_path_factory):
    root = tmp_path_factory.mktemp("compare")
    rng = np.random.default_rng(0)
    make_pool(root / "base", [3] * 60 + rng.integers(0, 9, 40).tolist())
    for step in (10, 20):
        make_pool(root / "runs" / "lab" / "pools" / f"step-{step}", [0] * 60 + rng.integers(0, 9, 40).tolist())
    comparison = compare(root / "base", root / "runs" / "lab" / "pools", resamples=50, examples=1000)
    return write_report(comparison, root / "page.html")


@pytest.fixture(scope="module")
def sweep_page(tmp_path_factory):
    rng = np.random.default_rng(0)
    names = ["plain", "low_lr", "<img src=x onerror=alert(1)>", *(f"variant_{i}" for i in range(9))]
    runs = []
    for name in names:
        for seed in range(2):
            last = dict.fromkeys(METRICS, 0.1) | {"pass_at_1": 0.3 + rng.random() / 5, "nscr": -rng.random() / 3}
            runs.append(Measured(name, seed, (0, 10), (dict.fromkeys(METRICS, 0.1), last), 100))
    sweep = Sweep(tuple(runs), {}, dict.fromkeys(METRICS, 0.2), 8, "pool", "entropy/token_T1")
    path = tmp_path_factory.mktemp("sweep") / "report.html"
    path.write_text(html_report(described(sweep, analyze(sweep.runs))), encoding="utf-8")
    return path


def test_a_reader_gets_the_verdict_first_and_every_lost_unit_to_read(page, comparison_page):
    page.goto(comparison_page.as_uri())
    assert page.inner_text("h1") == "lab, 2 steps, compared with base (sums)"
    assert page.inner_text("main > p >> nth=0").startswith("Support shrinks at step-20")
    assert page.locator(".list").first.locator("details").count() == 10
    page.select_option("select[name=only]", "lost")
    shown = int(page.inner_text(".told").split(" of ")[0])
    assert shown >= 60
    page.locator(".map canvas").focus()
    for _ in range(3):
        page.keyboard.press("ArrowDown")
    assert page.locator(".cell h3").all_inner_texts()[0].startswith("base:")
    assert page.locator(".cell pre.prompt").inner_text()
    assert "lost at 20" in page.inner_text(".trajectory")


@pytest.mark.parametrize("which", ["comparison_page", "sweep_page"])
def test_a_page_fits_a_phone_and_its_wide_tables_scroll(page, which, request):
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(request.getfixturevalue(which).as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    widths = page.evaluate("[...document.querySelectorAll('.scroll')].map((e) => [e.scrollWidth, e.clientWidth])")
    assert any(inside > outside for inside, outside in widths)


@pytest.mark.parametrize(("which", "most"), [("comparison_page", 6), ("sweep_page", 4)])
def test_a_page_prints_on_a_few_sheets(page, which, most, request):
    page.goto(request.getfixturevalue(which).as_uri())
    assert 1 <= len(re.findall(rb"/Type\s*/Page\b", page.pdf(format="A4"))) <= most


def test_the_pareto_tells_names_filters_and_sorts(page, sweep_page):
    page.goto(sweep_page.as_uri())
    table = page.locator("table").first
    arms = page.evaluate("[...document.querySelectorAll('tr[data-arm]')].map((row) => row.dataset.arm)")
    hostile = arms[2]
    box = page.locator(f"svg [data-arm='{hostile}'] use").first.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    assert "NSCR" in page.inner_text(".tip")
    assert page.locator("svg .lit").count() >= 3
    page.fill(".tools input", "variant_")
    assert table.locator("tbody tr[data-arm]:visible").count() == 9
    assert "9 of 12" in page.inner_text(".tools")
    page.fill(".tools input", "")
    column = [head.strip() for head in table.locator("thead th").all_inner_texts()].index("NSCR")
    for order in (1, -1):
        table.locator("thead th").nth(column).click()
        cells = table.locator(f"tbody tr[data-arm] td:nth-child({column + 1})").all_inner_texts()
        values = [float(text.split()[0]) for text in cells]
        assert values == sorted(values, reverse=order == 1)
