"""Sweeps made of numbers: what a monitor would have measured if the truth were known."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from offleash.train.variants.planned.exact import ExactPath
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


class Bandits:
    """Problems with a few correct answers each, and runs that move their logits: exact probabilities at will.

    A correct answer has the base probability P q; `move` gives the policy's by problem and unit, from shifts of the
    logit of P (problems) and of log q (units).
    """

    def __init__(self, rng: np.random.Generator, problems: int, answers: int = 6) -> None:
        self.rng, self.problems, self.answers = rng, problems, answers
        self.logit_p = rng.normal(-0.8, 1.5, problems)
        self.log_q_pa = np.log(rng.dirichlet(np.full(answers, 0.25), problems) + 1e-9)
        self.problem_u = np.repeat(np.arange(problems), answers)

    def probability_u(self, logit_p: np.ndarray, log_q_pa: np.ndarray) -> np.ndarray:
        q_pa = np.exp(log_q_pa - log_q_pa.max(axis=1, keepdims=True))
        return (q_pa / q_pa.sum(axis=1, keepdims=True) / (1 + np.exp(-logit_p))[:, None]).ravel()

    @property
    def base_u(self) -> np.ndarray:
        return self.probability_u(self.logit_p, self.log_q_pa)

    def path(self, *policies_u: np.ndarray) -> ExactPath:
        rows = np.array([self.base_u, *policies_u])
        return ExactPath(tuple(range(0, 50 * len(rows), 50)), rows, self.problem_u)

    def tilted(self, log_weight: float, noise: float = 0.0) -> np.ndarray:
        """The KL-optimal reweighting, or near it: `noise` shifts every problem's logit on its own."""
        return self.probability_u(self.logit_p + log_weight + noise * self._normal(self.problems), self.log_q_pa)

    def sharpened(self, log_weight: float, power: float, noise: float = 0.0) -> np.ndarray:
        """Likely answers grow at the expense of the others, as under plain GRPO; `noise` on every unit."""
        shift = noise * self._normal((self.problems, self.answers))
        return self.probability_u(self.logit_p + log_weight, power * self.log_q_pa + shift)

    def _normal(self, size: Any) -> np.ndarray:
        return self.rng.normal(size=size)


@pytest.fixture(scope="session")
def bandits() -> type[Bandits]:
    return Bandits
