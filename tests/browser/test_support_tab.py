"""The Support tab in a real browser: what a person does with it, and what hostile model text cannot do."""

import shutil

import pytest

from offleash.callbacks.tab.export import write_html
from offleash.eval.pool.pool import Pool
from tests.browser.looking import PROBLEMS, board, fill, frame_of, hits_at, measure, opened

pytestmark = pytest.mark.browser


def click_row(frame, row, step=None):
    """Click into the map: the row-th of those shown, at a step (default: on its name)."""
    where = frame.evaluate(
        """([row, step]) => {
          const canvas = document.querySelector(".map canvas"), box = canvas.getBoundingClientRect();
          const width = canvas.parentElement.clientWidth, steps = Number(document.querySelector("#step").max) + 1;
          const label = Math.max(110, Math.min(width * 0.36, 270), Math.min(width - (steps + 1) * 36 - 8, 560));
          const column = Math.max(5, Math.min(36, (width - label - 8) / (steps + 1)));
          return { x: step === null ? 20 : label + 4 + (step + 1.5) * column, y: 34 + 16 * (row + 0.5) };
        }""",
        [row, step],
    )
    frame.click(".map canvas", position=where)


def wait(frame, condition):
    frame.wait_for_function(condition, polling=200)


def told(frame):
    return frame.inner_text(".told")


def test_a_lost_cell_is_found_opened_and_read(page, runs):
    with board("--logdir", runs / "plain") as address:
        frame = opened(page, address)
        verdict = frame.inner_text("#verdict")
        assert "at step 30" in verdict
        assert "2 lost" in verdict
        assert "1 gained" in verdict
        assert frame.locator(".chart svg").count() == 6
        assert "not measured" in frame.inner_text(".chart:has-text('token entropy')")
        frame.wait_for_selector("rect.band", state="attached")
        assert told(frame) == "45 of 45 answers"

        frame.select_option("select[name=only]", "lost")
        assert told(frame) == "2 of 45 answers"
        frame.select_option("select[name=only]", "again")
        assert told(frame) == "1 of 45 answers"
        click_row(frame, 0, step=3)
        frame.wait_for_selector(".cell .sides")
        assert frame.inner_text(".cell h2") == "sums-1, step 30"
        assert "lost at 10, back at 20, lost again at 30" in frame.inner_text(".trajectory")
        base, policy = (frame.inner_text(f".cell section.{side}") for side in ("base", "policy"))
        assert "24 of 32 correct" in base
        assert "20 × 1+1" in base
        assert "only base" in base
        assert "4 of 32 correct" in policy
        assert "1 + 1 = no idea" in frame.text_content(".cell section.policy")
        assert "last line" in base

        frame.select_option("select[name=only]", "all")
        frame.select_option("select[name=sort]", "order")
        frame.fill("input[name=search]", "MORE-3")
        assert told(frame) == "11 of 45 answers"
        frame.select_option("select[name=level]", "problem")
        wait(frame, "document.querySelector('.told').textContent.includes('problems')")
        assert told(frame) == "11 of 43 problems"
        click_row(frame, 0)
        wait(frame, "document.querySelector('.cell h2').textContent.startsWith('more-3,')")
        frame.click("button[name=next]")
        wait(frame, "document.querySelector('.cell h2').textContent.startsWith('more-30,')")
        frame.select_option("select[name=level]", "spelling")
        wait(frame, "document.querySelector('.told').textContent.includes('spellings')")


def test_sliders_move_the_verdict_the_charts_and_the_cell(page, runs):
    with board("--logdir", runs / "plain") as address:
        frame = opened(page, address)
        frame.select_option("select[name=only]", "again")
        click_row(frame, 0, step=3)
        frame.wait_for_selector(".cell .sides")
        frame.fill("#step", "2")
        assert "at step 20" in frame.inner_text("#verdict")
        wait(frame, "document.querySelector('.cell h2').textContent === 'sums-1, step 20'")
        assert "9 × 1+1" in frame.inner_text(".cell section.policy")
        frame.fill("#k", "0")
        assert "pass@1 over steps" in frame.inner_text(".charts")
        frame.focus(".map canvas")
        page.keyboard.press("ArrowLeft")
        wait(frame, "document.querySelector('.cell h2').textContent === 'sums-1, step 10'")


def test_it_follows_dark_mode(page, runs):
    ground = "getComputedStyle(document.body).backgroundColor"
    with board("--logdir", runs / "plain") as address:
        frame = opened(page, address)
        light = frame.evaluate(ground)
        pixel = "[...document.querySelector('.map canvas').getContext('2d').getImageData(5, 5, 1, 1).data]"
        before = frame.evaluate(pixel)
        page.evaluate("document.body.classList.add('dark-mode')")
        wait(frame, f"{ground} !== {light!r}")
        assert frame.evaluate(pixel) != before


def test_two_runs_are_overlaid_in_tensorboard_s_own_colours(page, runs):
    with board("--logdir", runs) as address:
        frame = opened(page, address)
        assert frame.inner_text("#colours") == "TensorBoard's default colours"
        ours = dict(
            frame.evaluate(
                """[...document.querySelectorAll("#runs label")]
                  .map((one) => [one.textContent, one.querySelector(".swatch").style.background])"""
            )
        )
        assert set(ours) == {"plain", "focal"}
        assert frame.locator(".chart").nth(1).locator("polyline").count() == 4
        frame.uncheck("#runs label:has-text('focal') input")
        assert frame.locator(".chart").nth(1).locator("polyline").count() == 2
        frame.select_option("select[name=run]", "focal")
        wait(frame, "document.querySelector('#verdict').textContent.includes('at step 10')")

        page.goto(f"{address}#timeseries")
        page.wait_for_selector("tb-data-table-content-cell button.run-color-swatch")
        theirs = page.evaluate(
            """() => Object.fromEntries([...document.querySelectorAll("tb-data-table-content-row, .row")]
              .map((row) => [row.textContent.trim().split("/")[0].trim(), row.querySelector(".run-color-swatch")])
              .map(([name, swatch]) => [name, swatch?.style.background])
              .filter(([, hue]) => hue))"""
        )
        assert theirs == ours


def test_a_live_run_grows_and_is_resumed_without_opening_the_page_again(page, runs):
    folder, base = runs / "plain", Pool.open(runs.parent / "base-pools" / "base")
    with board("--logdir", folder) as address:
        frame = opened(page, address)
        assert "at step 30" in frame.inner_text("#verdict")
        measure(folder, [0, 10, 20, 30, 40], base)
        page.click("button[aria-label*='eload'], .reload-button, mat-icon[svgicon='refresh_24px']")
        wait(frame, "document.querySelector('#verdict').textContent.includes('at step 40')")

        frame.select_option("select[name=only]", "again")
        click_row(frame, 0, step=4)
        frame.wait_for_selector(".cell .sides")
        for step in (30, 40):  # resumed from 20: what came later is measured again, with another outcome
            shutil.rmtree(folder / "pools" / f"step-{step:06d}")
        fill(folder / "pools" / "step-000030", hits_at(0))
        measure(folder, [0, 10, 20, 30], base)
        page.click("button[aria-label*='eload'], .reload-button, mat-icon[svgicon='refresh_24px']")
        wait(frame, "document.querySelector('#verdict').textContent.includes('at step 30')")
        wait(frame, "document.querySelector('.cell section.policy')?.textContent.includes('20 × 1+1')")
        assert frame.inner_text("#step-now") == "30 of 30"


def test_hostile_text_is_shown_and_does_nothing(page, runs):
    with board("--logdir", runs / "plain") as address:
        frame = opened(page, address)
        frame.fill("input[name=search]", "</script>")
        assert told(frame) == "1 of 45 answers"
        click_row(frame, 0, step=3)
        frame.wait_for_selector(".cell .sides")
        assert frame.inner_text(".cell h2") == f"{PROBLEMS[2].id}, step 30"
        assert "<img src=x onerror" in frame.text_content(".cell section.base")
        assert frame.locator("img, main script, main b:text('hostile'), main i:text('6')").count() == 0
        assert page.evaluate("globalThis.pwned === undefined")
        assert frame.evaluate("document.documentElement.scrollWidth <= innerWidth")
        click_row(frame, 0)
        frame.hover(".map canvas", position={"x": 20, "y": 42})
        assert "\u202e" not in frame.inner_text(".hovered")


def test_a_link_reopens_the_cell(page, runs):
    with board("--logdir", runs, "--path_prefix", "/some/prefix") as address:
        assert "/some/prefix/" in address
        frame = opened(page, address)
        frame.select_option("select[name=run]", "plain")
        wait(frame, "document.querySelector('#verdict').textContent.includes('at step 30')")
        frame.fill("input[name=search]", "2*2")
        wait(frame, "document.querySelector('.told').textContent === '1 of 45 answers'")
        click_row(frame, 0, step=2)
        frame.wait_for_selector("button[name=copy]")
        link = frame.get_attribute("button[name=copy]", "title")
        page.goto("about:blank")
        page.goto(link)
        frame = frame_of(page)
        frame.wait_for_selector(".cell .sides")
        assert frame.inner_text(".cell h2") == "sums-2, step 20"
        assert frame.input_value("select[name=run]") == "plain"
        assert "gained at 20" in frame.inner_text(".trajectory")


@pytest.mark.parametrize("where", ["tab.html", "tab/"])
def test_an_export_opens_from_disk(page, runs, tmp_path, where):
    write_html({"plain": runs / "plain", "focal": runs / "focal"}, f"{tmp_path}/{where}")
    file = tmp_path / where if where.endswith("html") else tmp_path / where / "index.html"
    page.goto(file.as_uri())
    frame = frame_of(page)
    assert "at step 30" in frame.inner_text("#verdict")
    wait(frame, "document.querySelector('.told').textContent === '45 of 45 answers'")
    frame.fill("input[name=search]", "</script>")
    click_row(frame, 0, step=3)
    frame.wait_for_selector(".cell .sides")
    assert "20 × <i>6</i>" in frame.inner_text(".cell section.base")
    assert page.evaluate("globalThis.pwned === undefined")
    link = frame.get_attribute("button[name=copy]", "title")
    page.goto("about:blank")
    page.goto(link)
    frame_of(page).wait_for_selector(".cell .sides")


def test_fast_loading_and_the_folder_of_event_files(page, runs):
    with board("--logdir", runs / "plain" / "tensorboard", "--load_fast", "true") as address:
        frame = opened(page, address)
        assert "at step 30" in frame.inner_text("#verdict")
        assert told(frame) == "45 of 45 answers"


def test_a_broken_install_leaves_tensorboard_working(page, runs):
    with board("--logdir", runs, before="import sys; sys.modules['pyarrow'] = None") as address:
        page.goto(f"{address}#offleash_support")
        error = page.frame_locator("iframe").locator(".error")
        error.wait_for()
        assert "pyarrow" in error.inner_text()
        page.goto(f"{address}#timeseries")
        page.wait_for_selector("text=loss")
