"""The pictures of the Support tab in README and docs, made of real runs.

    python -m tests.browser.screenshots runs/lab                        # the first picture, and the same in the dark
    python -m tests.browser.screenshots runs/lab runs/plain runs/focal  # and two runs overlaid

The first run is shown alone, at its last step, with the most firmly held answer that it lost. Needs Playwright and
Chromium (`pip install offleash[browser]`).
"""

import argparse
import os
import shutil
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

from offleash.callbacks.tab.serve import check_runs
from tests.browser.looking import board, opened

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs" / "images"
SIZE = {"width": 1360, "height": 1240}


def take(browser: Browser, runs: list[Path], target: Path, dark: bool = False, cell: bool = True) -> None:
    """One picture. `cell`: with the first row of the map opened."""
    spec = ",".join(f"{name}:{path}" for name, path in check_runs(runs).items())
    with board("--logdir_spec", spec) as address:
        page = browser.new_page(viewport=SIZE)
        page.set_default_timeout(120_000)
        frame = opened(page, address)
        if dark:
            page.evaluate("document.body.classList.add('dark-mode')")
        frame.wait_for_selector("rect.band", state="attached")
        if cell:
            frame.click(".map canvas", position={"x": 20, "y": 42})
            frame.wait_for_selector(".cell .sides")
        page.wait_for_timeout(500)
        target.parent.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=target)
        page.close()
    print(target)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    options = parser.parse_args()
    found = os.environ.get("CHROMIUM") or shutil.which("chromium")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=found, args=["--no-sandbox", "--disable-gpu"])
        first, *others = options.runs
        take(browser, [first], ROOT / "recipes" / "lab" / "support-tab.png")
        take(browser, [first], DOCS / "tab-dark.png", dark=True)
        if others:
            take(browser, others, DOCS / "tab-runs.png", cell=False)
        browser.close()


if __name__ == "__main__":
    main()
