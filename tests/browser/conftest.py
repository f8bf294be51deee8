"""A real browser: Chromium by Playwright."""

import os
import shutil
import time

import pytest

from tests.browser.looking import fill, hits_at, is_far, measure, write_events


@pytest.fixture(scope="session")
def chromium():
    """A browser; skipped, with the reason, where there is none."""
    playwright = pytest.importorskip("playwright.sync_api", reason="needs Playwright: pip install offleash[browser]")
    found = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, ("chromium", "google-chrome"))), None)
    with playwright.sync_playwright() as driver:
        try:
            browser = driver.chromium.launch(executable_path=found, args=["--no-sandbox", "--disable-gpu"])
        except playwright.Error as error:
            pytest.skip(f"Chromium does not start ({str(error).splitlines()[0]}): playwright install chromium")
        yield browser
        browser.close()


@pytest.fixture
def page(chromium):
    """A page that fails the test if its scripts do, or if it asks for anything outside of this machine."""
    context = chromium.new_context(viewport={"width": 1300, "height": 1000}, permissions=["clipboard-write"])
    page = context.new_page()
    page.set_default_timeout(60_000)
    errors, strange = [], []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("dialog", lambda dialog: errors.append(f"dialog: {dialog.message}"))
    page.on("request", lambda request: strange.append(request.url) if is_far(request.url) else None)
    yield page
    context.close()
    assert errors == []
    assert [url for url in strange if "fonts" not in url] == []


@pytest.fixture
def runs(tmp_path):
    """A folder with two runs that share a base pool."""
    base = fill(tmp_path / "base-pools" / "base", hits_at(0))
    for i, (name, steps) in enumerate({"plain": [0, 10, 20, 30], "focal": [0, 10]}.items()):
        measure(tmp_path / "runs" / name, steps, base)
        write_events(tmp_path / "runs" / name / "tensorboard", time.time() - 100 + i)
    return tmp_path / "runs"
