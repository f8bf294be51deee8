"""Sweeps made of numbers: what a monitor would have measured if the truth were known."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from offleash.train.variants.results import METRICS, Measured, Sweep

BASE = dict.fromkeys(METRICS, math.nan) | {
    "pass_at_1": 0.30,
    "pass_at_top": 0.9,
    "distinct_correct": 4.0,
    "answer_entropy": 2.0,
    "token_entropy": 0.5,
    "no_answer": 0.0,
    "truncated": 0.0,
    "failed": 0.0,
}


@pytest.fixture(scope="session")
def make_runs() -> Callable[..., list[Measured]]:
    """Step 0, and the end of each run: normal seed noise around each variant's (pass@1, NSCR)."""

    def make(truth: Mapping[str, tuple[float, float]], seeds: int, rng: Any, noise: float = 0.02) -> list[Measured]:
        runs = []
        for name, (passed, nscr) in truth.items():
            draws = rng.normal(0, noise, (seeds, 2))
            for seed in range(seeds):
                last = {"pass_at_1": passed + draws[seed, 0], "nscr": nscr + draws[seed, 1]}
                runs.append(Measured(name, seed, (0, 100), ({"pass_at_1": 0.3, "nscr": 0.0}, last)))
        return runs

    return make


@pytest.fixture(scope="session")
def full_sweep() -> Sweep:
    """Seven variants x three seeds, every metric, three measurements each; one more run failed."""
    rng = np.random.default_rng(0)
    truth = {
        "plain": (0.45, -0.20),
        "low_lr": (0.41, -0.12),
        "placebo": (0.45, -0.19),
        "pass_at_k": (0.44, -0.02),
        "focal": (0.46, -0.10),
        "w_reinforce": (0.47, -0.16),
        "<b>wild</b>|x": (0.40, 0.03),
    }
    runs = []
    for name, (passed, nscr) in truth.items():
        for seed in range(3):
            series = []
            for part in (0.0, 0.5, 1.0):
                a, b = rng.normal(0, 0.006, 2)
                last = dict.fromkeys(METRICS, 0.0) | {
                    "pass_at_1": BASE["pass_at_1"] + part * (passed - BASE["pass_at_1"]) + a,
                    "nscr": part * nscr + b,
                    "srr": min(1.0, 1 + part * nscr + a),
                    "ndr": 0.1 + b,
                    "sds": 0.2,
                    "problem_nscr": part * nscr / 2,
                    "pass_at_top": 0.9,
                    "distinct_correct": 4 + 5 * part * nscr,
                    "answer_entropy": 2 + 3 * part * nscr,
                    "token_entropy": 0.5,
                }
                series.append(last)
            runs.append(Measured(name, seed, (0, 50, 100), tuple(series), 51200, 32768 if name == "focal" else 0))
    missing = {"focal seed 3": "failed with status 1: out of memory"}
    return Sweep(tuple(runs), missing, BASE, 64, "countdown-0123456789abcdef", "entropy/token_T1")
