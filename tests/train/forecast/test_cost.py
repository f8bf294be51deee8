"""Seconds by hand, operations against a counter of the real ones, and how often a run is measured."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoConfig

from offleash.eval.errors import ConfigError
from offleash.train.forecast.cost import (
    forward_seconds,
    measurements,
    rollout_seconds,
    rounds_seconds,
    update_seconds,
)
from offleash.train.forecast.hardware import GPUS, Device, Machines, Pace, find_device
from offleash.train.forecast.lengths import Lengths, Size
from offleash.train.forecast.model_size import ModelSize, measure_model

UNIT = Device("unit", 1e12, 1e9, 1e12)
PEAK = Pace(1.0, 0.5, 0.005)
ONE, TWO = Machines(UNIT, 1, pace=PEAK), Machines(UNIT, 2, pace=PEAK)
MODEL = ModelSize(1000, 1000, 1, 8, 8, 8, 16, 100, None)
LENGTHS = Lengths(prompt=100, completion=300, longest=300)  # all of one length
SIZE = Size(400, 0)  # without attention
FAST = {"checkpointing": False, "reference": False, "old": False}


def test_an_update_costs_six_operations_per_parameter_and_token_and_more_for_what_is_asked():
    tokens = 50 * 400 * 1000 / 1e12
    assert update_seconds(MODEL, ONE, 50, SIZE, **FAST) == pytest.approx(6 * tokens)
    assert update_seconds(MODEL, TWO, 50, SIZE, **FAST) == pytest.approx(3 * tokens)
    every = FAST | {"checkpointing": True, "reference": True, "old": True}
    assert update_seconds(MODEL, ONE, 50, SIZE, **every) == pytest.approx(12 * tokens)
    assert update_seconds(MODEL, ONE, 50, SIZE, **every, iterations=4) == pytest.approx(9 * tokens)
    adapted, half = MODEL._replace(adapter=True), Machines(UNIT, 1, pace=PEAK._replace(arithmetic=0.5))
    assert update_seconds(adapted, half, 50, SIZE, **FAST) == pytest.approx(8 * tokens)
    assert forward_seconds(MODEL, ONE, 50, SIZE) == pytest.approx(2 * tokens)


def test_attention_costs_two_operations_per_unit_of_width_for_each_pair_of_tokens():
    pairs = forward_seconds(MODEL, ONE, 50, Size(400, 400**2)) - forward_seconds(MODEL, ONE, 50, SIZE)
    assert pairs == pytest.approx(50 * 2 * 1 * 8 * 400**2 / 1e12)


def test_six_per_parameter_and_token_is_what_the_real_model_takes(lab_base, lab_model):
    size, (model, _) = measure_model(AutoConfig.from_pretrained(lab_base)), lab_model
    with FlopCounterMode(display=False) as counter:
        model(torch.ones(4, 32, dtype=torch.long), use_cache=False).logits.sum().backward()
    model.zero_grad(set_to_none=True)
    assert counter.get_total_flops() / (6 * size.parameters * 4 * 32) == pytest.approx(1, abs=0.15)


def test_generating_waits_for_the_longest_or_for_the_waves_and_reads_weights_and_cache():
    def seconds(sequences, at_once):
        return rollout_seconds(MODEL, ONE, sequences, LENGTHS, at_once)

    cache = 300 * 250 * 2 * 8 * 2 / 0.5e12
    step = 0.005 + 2000 / 0.5e12
    assert seconds(10, at_once=10) == pytest.approx(300 * step + 10 * cache)
    assert seconds(100, at_once=10) == pytest.approx(10 * 300 * step + 100 * cache)
    in_rounds = rounds_seconds(MODEL, ONE, 100, LENGTHS, 40, per_round=20)
    assert in_rounds == pytest.approx(5 * seconds(20, at_once=40))
    skewed = LENGTHS._replace(longest=3000)
    assert skewed.longest_of(10) > 600
    assert rollout_seconds(MODEL, ONE, 10, skewed, 10) == pytest.approx(
        skewed.longest_of(10) * step + 10 * cache * (skewed.padded().square - 100**2) / 150_000
    )


def test_generating_is_bound_by_arithmetic_where_that_takes_longer():
    slow = Machines(UNIT._replace(flops=1e6), 1, pace=PEAK)
    operations = 2 * 1000 * 4000 + 10 * 2 * 8 * 400**2
    assert rollout_seconds(MODEL, slow, 10, LENGTHS, 10) == pytest.approx(operations / 1e6)


def test_a_run_is_measured_at_its_base_at_step_0_at_every_interval_and_at_its_end():
    assert measurements(200, 70) == 5  # base, 0, 70, 140, 200
    assert measurements(200, 50) == 6  # base, 0, 50, 100, 150, 200
    assert measurements(200, 0) == measurements(None, 0) == 0
    assert measurements(None, 50) is None


def test_a_device_is_found_by_name_and_an_unknown_one_refused_with_the_known():
    assert find_device("h100") == GPUS["H100"]
    assert find_device("cpu").memory > 1e8
    with pytest.raises(ConfigError, match=r"'H1000'.*H100"):
        find_device("H1000")
