import json
import math
import re

import pytest

from offleash.callbacks import SupportCallback, SupportGuard
from offleash.callbacks.guard import parse_rule
from offleash.eval.errors import ConfigError
from offleash.eval.tasks import load_task


@pytest.mark.parametrize(
    ("text", "tag", "compare", "bound"),
    [
        ("srr < 0.9", "support/unit/srr", "<", 0.9),
        ("nscr<=-.05", "support/unit/nscr", "<=", -0.05),
        ("  pass_at_k/1 >= 1e-2 ", "pass_at_k/1", ">=", 0.01),
        ("best sds", "support/unit/sds", "best", math.nan),
        (" patience 3  nscr", "support/unit/nscr", "patience", 3.0),
    ],
)
def test_rules_are_read(text, tag, compare, bound):
    rule = parse_rule(text)
    assert (rule.tag, rule.compare) == (tag, compare)
    assert rule.bound == bound or math.isnan(bound)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "srr",
        "srr < ",
        "srr == 0.9",
        "best",
        "best a b",
        "srr < x",
        "srr < 1 2",
        "patience nscr",
        "patience 0 nscr",
        "patience -1 nscr",
        "patience 2",
    ],
)
def test_what_is_no_rule_is_refused(text):
    with pytest.raises(ConfigError, match=re.escape(repr(text))):
        parse_rule(text)


def test_an_undefined_number_stops_nothing():
    assert not parse_rule("srr < 0.9").holds({"support/unit/srr": math.nan})


@pytest.mark.parametrize(
    ("values", "patience", "is_out"),
    [
        ([0.1, 0.0, 0.0], 2, True),
        ([0.1, 0.0], 2, False),
        ([0.1, 0.1, 0.1], 2, True),  # no new highest value
        ([0.1, 0.0, 0.2, 0.1], 2, False),
        ([0.1, math.nan, math.nan], 1, False),
        ([], 1, False),
    ],
)
def test_patience_is_the_number_of_measured_steps_since_the_highest_value(values, patience, is_out):
    history = {0: {"support/unit/nscr": 9.0}} | {10 * i: {"support/unit/nscr": v} for i, v in enumerate(values, 1)}
    rule = parse_rule(f"patience {patience} nscr")
    assert rule.is_out_of_patience(history) == is_out
    assert not rule.holds(history[0])


def guarded(make_trainer, rules, **settings):
    trainer = make_trainer(save_strategy="steps", save_steps=100, **settings)
    monitor = SupportCallback(trainer, load_task("countdown", split="probe", n=6), k=4, every=1)
    trainer.add_callback(monitor)
    trainer.add_callback(SupportGuard(monitor, rules))
    return trainer, monitor


@pytest.mark.long
def test_a_stopping_rule_stops_saves_and_says_why(make_trainer, tmp_path, capsys):
    trainer, monitor = guarded(make_trainer, "nscr < 2")
    trainer.train()
    assert trainer.state.global_step == 1
    assert (tmp_path / "run" / "checkpoint-1").exists()
    said = capsys.readouterr().out
    assert f"stopped at step 1: support/unit/nscr is {monitor.history[1]['support/unit/nscr']:.4g}" in said
    assert "'nscr < 2'" in said


@pytest.mark.long
def test_the_best_checkpoint_is_marked_and_survives_rotation(make_trainer, tmp_path, capsys):
    trainer, monitor = guarded(make_trainer, "best pass_at_k/1", save_total_limit=1, max_steps=4)
    trainer.train()
    values = {step: monitor.history[step]["pass_at_k/1"] for step in range(1, 5)}
    best = max(values, key=lambda step: (values[step], -step))
    record = json.loads((tmp_path / "run" / "best.json").read_text())
    assert (record["step"], record["value"]) == (best, values[best])
    assert (tmp_path / "run" / record["checkpoint"] / "model.safetensors").exists()
    assert "checkpoint-1 is kept" in capsys.readouterr().out


@pytest.mark.long
def test_the_stop_is_recorded_for_a_resume(make_trainer, tmp_path):
    trainer, monitor = guarded(make_trainer, "nscr < 2")
    trainer.train()
    record = json.loads((tmp_path / "run" / "stopped.json").read_text())
    assert record["rule"] == "nscr < 2"
    assert record["value"] == monitor.history[1]["support/unit/nscr"]


@pytest.mark.long
def test_a_run_without_patience_is_stopped_and_recorded(make_trainer, tmp_path):
    trainer, _ = guarded(make_trainer, "patience 1 detection_limit")  # a constant: step 2 has no new highest value
    with pytest.raises(ConfigError, match="detection_limit"):
        trainer.train()
    trainer, _ = guarded(make_trainer, "patience 1 monitor/samples", output_dir=str(tmp_path / "again"))
    trainer.train()
    assert trainer.state.global_step == 2
    assert json.loads((tmp_path / "again" / "stopped.json").read_text())["rule"] == "patience 1 monitor/samples"


def test_two_best_rules_are_refused(make_trainer):
    with pytest.raises(ConfigError, match="'best'"):
        guarded(make_trainer, ["best sds", "best srr"])


def test_a_rule_over_an_unknown_metric_is_refused_before_training(make_trainer):
    trainer, _ = guarded(make_trainer, "support/unit/ssr < 0.9")
    with pytest.raises(ConfigError, match="'support/unit/ssr'"):
        trainer.train()
    assert trainer.state.global_step == 0
