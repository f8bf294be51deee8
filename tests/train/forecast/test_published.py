"""The cost model against runs whose cost was published: the table in docs/real-models.md.

All were trained with verl, which packs sequences instead of padding them, with gradient checkpointing, a KL reference
and old log-probabilities. Mean lengths of completions are read from the reports' text and figures, and are rough.
Dynamic sampling, which ProRL uses, is not counted.
"""

import math
from pathlib import Path
from typing import NamedTuple

import pytest
from transformers import AutoConfig

from offleash.train.forecast.cost import rollout_seconds, update_seconds
from offleash.train.forecast.hardware import FAST, GPUS, SLOW, USUAL, Machines
from offleash.train.forecast.lengths import Lengths
from offleash.train.forecast.memory import HALF, VLLM_RUNTIME_BYTES, cache_bytes
from offleash.train.forecast.model_size import measure_model
from tests.recipes.conftest import MODELS

DISTILL, SEVEN, LARGE = "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B", "Qwen/Qwen2.5-Math-7B", "Qwen/Qwen2.5-32B"
DOCS = Path(__file__).parents[3] / "docs" / "real-models.md"


class Stage(NamedTuple):
    gpu: str
    gpus: int
    steps: int
    rollouts: int
    lengths: Lengths
    engine_gpus: int = 1
    share: float = 0.75
    """Of the memory, for vLLM."""


RUNS = {
    # Model card of DeepScaleR-1.5B-Preview: 8k, 16k and 24k tokens, up to steps 1040, 1520 and 1750; 3,800 A100 hours.
    "DeepScaleR 1.5B": (
        *(DISTILL, 3800),
        Stage("A100", 8, 1040, 1024, Lengths(120, 4000, 8192)),
        Stage("A100", 32, 480, 2048, Lengths(120, 4500, 16384)),
        Stage("A100", 32, 230, 2048, Lengths(120, 6000, 24576)),
    ),
    # README of hkust-nlp/simpleRL-reason: 100 steps of 1024 x 8, 2 x 8 H100 for 15 h, 8 x 8 H100 for 1.5 days.
    "SimpleRL-Zoo 7B": (SEVEN, 240, Stage("H100", 16, 100, 8192, Lengths(150, 700, 8192), 2)),
    "SimpleRL-Zoo 32B": (LARGE, 2304, Stage("H100", 64, 100, 8192, Lengths(150, 700, 8192), 8)),
    # arXiv 2505.24864, sections 3.2 and E: 4 x 8 H100, 16,000 GPU hours; 256 x 16 rollouts, in two stages 256 x 32.
    "ProRL 1.5B": (
        *(DISTILL, 16000),
        Stage("H100", 32, 1500, 4096, Lengths(200, 5000, 8096)),
        Stage("H100", 32, 500, 8192, Lengths(200, 5000, 8096)),
        Stage("H100", 32, 200, 4096, Lengths(200, 6500, 16384)),
    ),
}


def gpu_hours(model, pace, *stages):
    kind, config, _ = MODELS[model]
    size = measure_model(AutoConfig.for_model(kind, **config))
    seconds = 0.0
    for stage in stages:
        machines = Machines(GPUS[stage.gpu], stage.gpus, pace=pace)
        room = stage.engine_gpus * (stage.share * machines.device.memory - VLLM_RUNTIME_BYTES) - size.parameters * HALF
        at_once = room / (cache_bytes(size, HALF) * stage.lengths.both)
        engine = (machines, stage.rollouts, stage.lengths, at_once)
        step = rollout_seconds(size, *engine, engine_gpus=stage.engine_gpus)
        how = {"checkpointing": True, "reference": True, "old": True}
        step += update_seconds(size, machines, stage.rollouts, stage.lengths.padded(), **how)
        seconds += stage.gpus * stage.steps * step
    return seconds / 3600


@pytest.mark.parametrize("name", RUNS)
def test_what_a_run_took_lies_between_the_bounds_and_the_docs_have_its_row(name):
    model, published, *stages = RUNS[name]
    low, usual, high = (gpu_hours(model, pace, *stages) for pace in (FAST, USUAL, SLOW))
    assert low < published < high
    row = f"| {name} | {published:,} | {usual:,.0f} | {low:,.0f} to {high:,.0f} | {published / usual:.1f} |"
    assert row in DOCS.read_text()


def test_estimates_are_as_often_too_high_as_too_low():
    factors = [published / gpu_hours(model, USUAL, *stages) for model, published, *stages in RUNS.values()]
    assert math.prod(factors) ** (1 / len(factors)) == pytest.approx(1, abs=0.3)
    assert 1 / 2.5 < min(factors) < 1 < max(factors) < 2.5
