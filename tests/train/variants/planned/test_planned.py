"""From runs' folders to the report: what it says is what was judged."""

import json
import re
import shutil

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from offleash.eval.errors import ConfigError
from offleash.train.commands.variants import main
from offleash.train.variants.origins import missing_words
from offleash.train.variants.plans import RULE, planned_runs, read_plan, record_plan
from offleash.train.variants.runs import record_start

PLAN = f"""
stage: confirm
recipe: lab
problems: {{split: probe, n: 40}}
seeds: [0, 1, 2, 3, 4, 5, 6, 7]
settings: {{monitor_exact: true, max_steps: 100, use_cpu: true}}
outcome: {{nscr: 1.0e-3}}
margin: 0.01
choose: {RULE}
controls: {{plain: [{{}}], low_lr: [{{}}]}}
variants: {{focal: [{{}}], pkpo: [{{}}]}}
"""
POWERS = {"plain": (1.2, 1.6), "low_lr": (0.5, 1.2), "focal": (1.2, 0.7), "pkpo": (1.2, 1.6)}


def leave(run, lab):
    """What a run leaves in its folder, as far as the report reads it."""
    record_start(run)
    weight, power = POWERS[run.overlay.arm]
    (run.folder / "exact").mkdir()
    for step, part in ((0, 0.0), (50, 0.5), (100, 1.0)):
        noise = 0.3 * part if run.overlay.arm != "focal" else 0.0
        probability_u = lab.sharpened(weight * part, 1 + part * (power - 1), noise) if part else lab.base_u
        np.savez(run.folder / "exact" / f"step-{step:06d}.npz", probability_u=probability_u, unit_problem=lab.problem_u)
    metrics = {"pass_at_k/1": 0.25, "support/unit/nscr": -0.125}
    record = {"k": 8, "token_entropy": "e", "base_pool": "pool", "base": {}, "steps": {"0": metrics, "100": metrics}}
    (run.folder / "support.json").write_text(json.dumps(record))
    (run.folder / "budget.json").write_text(json.dumps({"rollouts": 25600, "base_samples": 512, "seconds": 61.5}))
    (run.folder / "final").mkdir()


@pytest.fixture(scope="module")
def sweep(tmp_path_factory, bandits):
    place = tmp_path_factory.mktemp("planned")
    (place / "plan.yaml").write_text(PLAN)
    out = place / "out"
    lab = bandits(np.random.default_rng(0), 40)
    plan = read_plan(place / "plan.yaml")
    record_plan(plan, out)
    for run in planned_runs(plan, out):
        leave(run, lab)
    assert main(["--plan", str(place / "plan.yaml"), "--out", str(out), "--report-only"]) == 0
    return out


@pytest.fixture(scope="module")
def report(sweep):
    return json.loads((sweep / "report.json").read_text())


def test_the_record_has_the_plan_and_a_verdict_for_every_arm(report):
    arms = {arm["arm"]: arm for arm in report["arms"]}
    assert report["plans"][-1]["plan"]["outcome"] == {"nscr": 1e-3}
    assert len(report["plans"][-1]["sha256"]) == 64
    assert arms["plain"]["word"] == "shrinks"
    assert arms["focal"]["word"] == "expands"
    assert arms["focal"]["better"] is True
    assert arms["focal"]["above"] == ["plain", "low_lr"]
    assert arms["pkpo"]["better"] is False
    assert set(arms["focal"]["nscr"]) == {"0.1", "0.01", "0.001", "0.0001", "1e-05", "1e-06"}
    gap = arms["focal"]["gap"]["0.001"]["value"]
    assert gap == pytest.approx(arms["focal"]["nscr"]["0.001"]["value"] - arms["focal"]["line"]["0.001"]["value"])
    assert (arms["plain"]["rollouts"], arms["plain"]["base_samples"], arms["plain"]["seconds"]) == (25600, 512, 61.5)
    assert arms["plain"]["sampled_nscr"] == -0.125
    assert arms["plain"]["along"][0][2] == 0.0
    assert arms["plain"]["along"][-1][1:] == pytest.approx(
        [arms["plain"]["pass_at_1"]["value"], arms["plain"]["nscr"]["0.001"]["value"]]
    )
    assert set(report["inertness"]) == {"low_lr", "focal", "pkpo"}
    assert report["inertness"]["pkpo"]["departure"]["n"] == 8


def test_every_format_names_the_plan_the_words_and_the_line(sweep, report):
    for name in ("report.md", "report.html"):
        text = " ".join((sweep / name).read_text().split())
        assert report["plans"][-1]["sha256"][:12] in text
        assert "KL-optimal reweighting of the base at this pass@1" in text
        assert "better than plain and every control" in text
        assert "26,112" in text  # rollouts and base samples
    for name in ("leash.svg", "leash.png", "floors.svg", "floors.png", "tensorboard"):
        assert (sweep / name).exists()
    assert "KL-optimal" in (sweep / "leash.svg").read_text()


def test_every_name_can_be_traced_to_its_folder_overlay_and_settings(sweep, report):
    focal = report["origins"]["focal"]
    assert focal["folder"] == "focal"
    assert focal["overlays"] == ["configs/common.yaml", "recipes/variants/focal.yaml"][-len(focal["overlays"]) :]
    assert "focal" in focal["settings"]["explorer"]
    assert focal["seeds"] == list(range(8))
    assert set(report["origins"]) >= {arm["trial"] for arm in report["arms"]}
    page = (sweep / "report.html").read_text()
    assert "focal/seed-*" in page
    assert page.count('<tr data-arm="2">') >= 2  # in every table that has the arm
    assert len(re.findall(r'<g data-arm="2"', page)) >= 3  # its point, its name and the line between them


def test_the_hparams_page_has_what_runs_are_judged_by_beside_what_was_sampled(sweep, report):
    arm = next(arm for arm in report["arms"] if arm["arm"] == "focal")
    last = []
    for seed in arm["seeds"]:
        events = EventAccumulator(str(sweep / "focal" / f"seed-{seed}")).Reload()
        last.append([events.Scalars(f"variants/{key}")[-1] for key in ("exact_pass_at_1", "exact_nscr", "nscr")])
    passed, nscr, sampled = np.mean([[event.value for event in row] for row in last], axis=0)
    assert passed == pytest.approx(arm["pass_at_1"]["value"])
    assert nscr == pytest.approx(arm["nscr"]["0.001"]["value"])
    assert sampled == -0.125
    assert {event.step for row in last for event in row} == {100}


def test_runs_that_have_not_begun_are_one_warning_and_failures_one_each():
    missing = {f"focal seed {i}": "not started" for i in range(90)}
    told = missing_words({**missing, "pkpo seed 1": "not finished", "low_lr seed 2": "failed with status 1: boom"})
    assert told == [
        "low_lr seed 2: no result, failed with status 1: boom",
        "runs without a result: 1 not finished, 90 not started",
    ]
    assert missing_words({}) == []


def test_every_table_has_cells_for_its_header(sweep):
    rows = [line for line in (sweep / "report.md").read_text().split("\n") if line.startswith("| ")]
    assert len(rows) > 30


def test_a_run_is_not_judged_at_an_earlier_step_than_it_was_measured_at(sweep, tmp_path, capsys):
    shutil.copytree(sweep.parent, tmp_path / "copy")
    (tmp_path / "copy" / "out" / "focal" / "seed-0" / "exact" / "step-000100.npz").unlink()
    place = tmp_path / "copy"
    with pytest.raises(ConfigError, match=r"focal.* was measured at step 100, but .* end at step 50"):
        main(["--plan", str(place / "plan.yaml"), "--out", str(place / "out"), "--report-only"])
