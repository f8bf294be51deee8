"""Estimators below the detection limit, against the exact truth on the lab: bias and coverage.

    python bench/below.py --policy runs/lab/final           # a policy that `make lab` trained
    python bench/below.py                                   # without one: the base, sharpened

Every correct answer of the lab's probe problems is enumerated, so the true probabilities of both models are known, and
the true support above 1/1000 (and other thresholds) with them. Hits are then drawn from these probabilities, and
problems are redrawn for coverage. `docs/statistics.md` quotes these numbers.
"""

import argparse
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from offleash import recipes
from offleash.eval.engines.model import resolve_model
from offleash.eval.pool.settings import ModelSettings
from offleash.eval.scoring.exact import ExactUnits, exact_units
from offleash.eval.scoring.teacher_forcing import load_model
from offleash.eval.stats.importance import Draws, mixture_rates
from offleash.eval.stats.posterior import posterior_dynamics
from offleash.eval.stats.support import EPS, dynamics, metrics
from offleash.eval.tasks import load_task

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Rng = np.random.Generator
THRESHOLDS = [EPS, 1 / 256, 1 / 64, 1 / 16]


def exact(model: Path, problems: int) -> ExactUnits:
    task = load_task("countdown", split="probe", n=problems)
    source = resolve_model(str(model), dtype=ModelSettings().dtype)
    return exact_units(load_model(source), source.tokenizer, task, task.problems, max_new_tokens=20)


def sharpened(units: ExactUnits) -> Floats:
    """A policy whose mass moved to each problem's best answers, as training moves it."""
    mass_p, power_u = np.bincount(units.unit_problem, units.probability_u), units.probability_u**4
    share_u = power_u / np.bincount(units.unit_problem, power_u)[units.unit_problem]
    return share_u * np.minimum(0.95, 2 * mass_p)[units.unit_problem]


def nscr_above(base_u: Floats, policy_u: Floats, eps: float) -> float:
    return dynamics((base_u > eps).astype(int), (policy_u > eps).astype(int)).nscr


def draw(rng: Rng, rate_u: Floats, rows_p: list[Ints], n: int) -> Ints:
    """n samples of each problem, its answers competing for them."""
    return np.concatenate([rng.multinomial(n, [*rate_u[u], max(0.0, 1 - rate_u[u].sum())])[:-1] for u in rows_p])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policy", type=Path)
    parser.add_argument("--problems", type=int, default=64)
    parser.add_argument("--trials", type=int, default=40)
    options = parser.parse_args()
    units = exact(Path(recipes.__path__[0]) / "lab" / "base", options.problems)
    base, of = units.probability_u, units.unit_problem
    policy = exact(options.policy, options.problems).probability_u if options.policy else sharpened(units)
    rng, rows_p = np.random.default_rng(0), [np.flatnonzero(of == p) for p in range(options.problems)]

    truth = nscr_above(base, policy, EPS)
    print(f"NSCR above {EPS:g}: {truth:+.3f}")
    for n in (64, 256, 1024):
        found = []
        for _ in range(options.trials):
            hits = draw(rng, base, rows_p, n), draw(rng, policy, rows_p, n)
            fitted = posterior_dynamics(*hits, n, n, [EPS], of, rng=rng, resamples=1)[0]["nscr"].value
            found.append((dynamics(*hits).nscr - truth, fitted - truth))
        counted, bayes = np.mean(found, axis=0)
        print(f"  {n:>5} samples of each: bias {counted:+.3f} counted, {bayes:+.3f} empirical Bayes")
    for n_base, n_policy in ((64, 64), (256, 64), (1024, 64)):
        found = []
        for _ in range(options.trials):
            hits = draw(rng, base, rows_p, n_base), draw(rng, policy, rows_p, n_policy)
            seen = np.flatnonzero(hits[0] + hits[1])
            drawn = Draws(seen, of[seen], *(h[seen] for h in hits), np.log(base[seen]), np.log(policy[seen]))
            counts = (np.full(options.problems, n) for n in (n_base, n_policy))
            rates = mixture_rates(drawn, of.size, *counts)
            found.append((nscr_above(rates.base_u, rates.policy_u, EPS) - truth, *rates[2:]))
        bias, effective, variance = np.mean(found, axis=0)
        print(f"  {n_base:>5} of the base, {n_policy} of the policy: bias {bias:+.3f} importance weights "
              f"({effective:.0f} effective samples, log-ratio variance {variance:.2f})")  # fmt: skip

    print("coverage of 95 % intervals by empirical Bayes, problems redrawn")
    names, worst = ("srr", "ndr", "nscr"), (1.0, "")
    for n in (64, 256):
        held = np.zeros((len(THRESHOLDS), len(names)))
        for _ in range(options.trials):
            chosen = rng.integers(0, options.problems, options.problems)
            rows = [rows_p[p] for p in chosen]
            problem_u = np.repeat(np.arange(len(rows)), [len(u) for u in rows])
            hits = draw(rng, base, rows, n), draw(rng, policy, rows, n)
            found = posterior_dynamics(*hits, n, n, THRESHOLDS, problem_u, rng=rng, resamples=200)
            for e, eps in enumerate(THRESHOLDS):
                table = dynamics((base > eps).astype(int), (policy > eps).astype(int))
                values = metrics([table.preserved, table.shrunk, table.expanded, table.out])
                held[e] += [found[e][m].low - 1e-9 <= values[m] <= found[e][m].high + 1e-9 for m in names]
        for eps, row in zip(THRESHOLDS, held / options.trials, strict=True):
            print(
                f"  {n:>5} samples, above {eps:.4f}: "
                + ", ".join(f"{m} {x:.2f}" for m, x in zip(names, row, strict=True))
            )
            worst = min([worst, *((x, f"{m}, {n} samples, above {eps:.4f}") for m, x in zip(names, row, strict=True))])
    print(f"worst: {worst[0]:.2f} ({worst[1]})")


if __name__ == "__main__":
    main()
