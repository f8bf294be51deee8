"""Samples that an adaptive plan needs to decide support, against a fixed k for every problem.

    python bench/plans.py                       # until 1 success, and until 5, at most 8192 draws

Rates are simulated after the paper (arXiv 2507.14843v4): for each model pair and domain of Table 1, base and
policy rates each follow a Beta distribution whose mean is the pass@1 of Table 5 (avg@32, weighted by problems) and
whose unsolved share at k matches Table 1; they are coupled (same rank for a share of problems, independent for the
rest) so that Preserved, Shrunk, Expanded and Out match too, to about a point. Where Table 5 has no entry: ProRL-v2 has
ProRL's pass@1, Phi4 that of the 14B pair, and non-math problems that are solved have the rates of math problems that
are. OLMo and the VLM are left out: no pass@1 is known. k = 8192 stands for the paper's k, smaller outside math.

Both plans see the same draws, so their tables can be compared problem by problem: "agree" counts the problems that the
adaptive pool puts into the same cell as the fixed one. "batches" is the saving when an engine cannot stop inside a
batch: a problem gets 32 draws, then as many again as it has, until it is done.
"""

import argparse
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betainc

from offleash.eval.stats.support import Dynamics, dynamics

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# Problems in AIME24, AMC23, MATH500, Minerva, Olympiad, and avg@32 (%) of each model on them: Table 5.
PROBLEMS = np.array([30, 40, 500, 272, 675])
AVG_AT_32 = {
    "DeepSeek-1.5B": [31.15, 72.81, 85.01, 32.18, 51.55],
    "ProRL-1.5B": [45.62, 85.70, 92.01, 39.27, 64.56],
    "DeepSeek-7B": [53.23, 89.30, 93.95, 43.07, 66.67],
    "AceReason-7B": [65.83, 95.08, 95.81, 45.35, 73.92],
    "Skywork-7B": [67.40, 93.59, 95.73, 43.81, 73.05],
    "DeepSeek-14B": [67.81, 95.39, 95.28, 46.43, 72.06],
    "AceReason-14B": [77.29, 98.67, 97.01, 47.20, 77.74],
}

# Table 1: pair -> (base, policy) of Table 5, then P, S, E, O of math and of non-math.
PAIRS = {
    "ProRL-1.5B-v1": ("DeepSeek-1.5B", "ProRL-1.5B", Dynamics(1355, 56, 5, 131), Dynamics(1045, 107, 31, 674)),
    "ProRL-1.5B-v2": ("DeepSeek-1.5B", "ProRL-1.5B", Dynamics(1349, 62, 9, 127), Dynamics(1039, 113, 39, 666)),
    "AceReason-7B": ("DeepSeek-7B", "AceReason-7B", Dynamics(1431, 9, 5, 102), Dynamics(1284, 47, 23, 503)),
    "Skywork-OR1-7B": ("DeepSeek-7B", "Skywork-7B", Dynamics(1406, 34, 2, 105), Dynamics(1279, 52, 24, 502)),
    "AceReason-14B": ("DeepSeek-14B", "AceReason-14B", Dynamics(1425, 15, 5, 102), Dynamics(993, 8, 3, 399)),
    "Phi4-Reason-14B": ("DeepSeek-14B", "AceReason-14B", Dynamics(1407, 12, 8, 120), Dynamics(1067, 11, 8, 317)),
}


class Stopped(NamedTuple):
    """Where the plan left each problem: how many were drawn, and how many of them succeeded."""

    draws_p: Ints
    successes_p: Ints


class Mix(NamedTuple):
    """Problems with the rates of one row of Table 1."""

    name: str
    paper: Dynamics
    base_p: Floats
    policy_p: Floats


class Cost(NamedTuple):
    """What one plan spent on a mix, and whether it decided as the fixed plan did."""

    expected: float
    batched: float
    fixed: float
    agree: float


def unsolved_share(mean: float, weight: float, k: int) -> float:
    """E[(1 - rate)^k] under Beta(mean x weight, (1 - mean) x weight)."""
    b = (1 - mean) * weight
    return math.exp(math.lgamma(b + k) - math.lgamma(weight + k) + math.lgamma(weight) - math.lgamma(b))


def fitted_rates(mean: float, unsolved: float, k: int, size: int, rng: np.random.Generator) -> Floats:
    """Sorted rates of the Beta with this mean and this share unsolved at k."""
    low, high = 1e-4, 1e4
    for _ in range(100):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if unsolved_share(mean, middle, k) > unsolved else (low, middle)
    return np.sort(rng.beta(mean * low, (1 - mean) * low, size))


def coupled(base_p: Floats, policy_p: Floats, both: float, k: int, rng: np.random.Generator) -> Floats:
    """`policy_p` reordered to the base's ranks for enough problems that both models solve a share `both`."""
    solved_base, solved_policy = (1 - (1 - rate) ** k for rate in (base_p, policy_p))
    ranked, independent = float(np.mean(solved_base * solved_policy)), float(solved_base.mean() * solved_policy.mean())
    share = min(1.0, max(0.0, (both - independent) / (ranked - independent)))
    loose = np.flatnonzero(rng.random(base_p.size) >= share)
    reordered = policy_p.copy()
    reordered[loose] = rng.permutation(policy_p[loose])
    return reordered


def solved_shares(table: Dynamics) -> tuple[float, float]:
    """Of base and policy."""
    return (table.preserved + table.shrunk) / table.total, (table.preserved + table.expanded) / table.total


def mixes(k: int, copies: int, rng: np.random.Generator) -> Iterator[Mix]:
    for name, (base_name, policy_name, *domains) in PAIRS.items():
        means = [float(PROBLEMS @ AVG_AT_32[model] / PROBLEMS.sum() / 100) for model in (base_name, policy_name)]
        for domain, paper in zip(("math", "non-math"), domains, strict=True):
            size = paper.total * copies
            rates = []
            for mean, solved, solved_math in zip(
                means,
                solved_shares(paper),
                solved_shares(domains[0]),
                strict=True,
            ):
                rates.append(fitted_rates(mean * solved / solved_math, 1 - solved, k, size, rng))
            policy = coupled(rates[0], rates[1], paper.preserved / paper.total, k, rng)
            yield Mix(f"{name} {domain}", paper, rates[0], policy)


def expected_draws(rate: ArrayLike, successes: int, cap: int) -> Floats:
    """Expected draws of the plan at a true success rate.

    Wald's identity: successes at the stop = rate x draws on average, and they are min(r, Binomial(cap, rate)).
    """
    p = np.asarray(rate, dtype=np.float64)
    j = np.arange(1, min(successes, cap) + 1)
    at_stop = betainc(j, cap - j + 1, p[..., None]).sum(axis=-1)
    return np.divide(at_stop, p, out=np.full(p.shape, float(cap)), where=p > 0)


def run_plan(rate_p: ArrayLike, successes: int, cap: int, rng: np.random.Generator) -> Stopped:
    """Simulate the plan on problems with known success rates: gaps between successes are geometric."""
    rate = np.asarray(rate_p, dtype=np.float64)
    drawn, hits = np.zeros(rate.shape, np.int64), np.zeros(rate.shape, np.int64)
    active = rate > 0
    for _ in range(successes):
        gap = np.full(rate.shape, cap + 1, np.int64)
        gap[active] = np.minimum(rng.geometric(rate[active]), cap + 1)
        active &= drawn + gap <= cap
        drawn, hits = np.where(active, drawn + gap, drawn), hits + active
    return Stopped(np.where(hits < successes, cap, drawn), hits)


def batches(draws_p: Ints, first: int, cap: int) -> Ints:
    """Draws if a problem can stop only after first, 2 x first, 4 x first, ... draws."""
    steps = np.maximum(0, np.ceil(np.log2(draws_p / first))).astype(np.int64)
    return np.minimum(cap, first * 2**steps)


def cost(mix: Mix, successes: int, k: int, rng: np.random.Generator) -> tuple[Cost, Dynamics]:
    """Run the plan on both models of a mix, continue the same draws to k, and compare."""
    expected, batched = 0.0, 0.0
    fixed_hits: list[Ints] = []
    stopped_hits: list[Ints] = []
    for rate_p in (mix.base_p, mix.policy_p):
        stopped = run_plan(rate_p, successes, k, rng)
        fixed_hits.append(stopped.successes_p + rng.binomial(k - stopped.draws_p, rate_p))
        stopped_hits.append(stopped.successes_p)
        batched += float(batches(stopped.draws_p, 32, k).sum())
        expected += float(expected_draws(rate_p, successes, k).sum())
    same_cell_tp = [
        ((fixed_hits[0] >= t) == (stopped_hits[0] >= t)) & ((fixed_hits[1] >= t) == (stopped_hits[1] >= t))
        for t in (1, successes)
    ]
    spent = Cost(expected, batched, 2.0 * k * mix.base_p.size, float(np.mean(same_cell_tp)))
    return spent, dynamics(fixed_hits[0], fixed_hits[1])


def shares(table: Dynamics) -> str:
    counts = (table.preserved, table.shrunk, table.expanded, table.out)
    return "/".join(f"{100 * count / table.total:.1f}" for count in counts)


def main(argv: Sequence[str] | None = None) -> list[tuple[str, float]]:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--k", type=int, default=8192, help="draws of the fixed plan, and cap of the adaptive one")
    parser.add_argument("--successes", type=int, nargs="+", default=[1, 5], help="successes at which a problem is done")
    parser.add_argument("--copies", type=int, default=5, help="problems drawn for each one of the paper")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    rng = np.random.default_rng(options.seed)
    drawn = list(mixes(options.k, options.copies, rng))

    print(f"P/S/E/O in %; draws per problem and model out of {options.k}; fewer = fixed / adaptive\n")
    titles = f"{'r':>3}{'draws':>7}{'fewer':>8}{'batches':>9}{'agree':>8}"
    print(f"{'mix':25}{'paper P/S/E/O':>20}{'drawn P/S/E/O':>20}{titles}")
    saved: list[tuple[str, float]] = []
    for successes in options.successes:
        rows: list[Cost] = []
        for mix in drawn:
            spent, table = cost(mix, successes, options.k, rng)
            print_row(mix.name, shares(mix.paper), shares(table), successes, spent, 2 * mix.base_p.size)
            rows.append(spent)
        expected, batched, fixed, agree = np.sum(rows, axis=0)
        totals = Cost(expected, batched, fixed, agree / len(rows))
        saved.append((f"samples of a fixed k against until {successes} successes", fixed / expected))
        print_row("all", "", "", successes, totals, 2 * sum(mix.base_p.size for mix in drawn))
        print()
    return saved


def print_row(name: str, paper: str, table: str, successes: int, spent: Cost, pools: int) -> None:
    fewer, batched = spent.fixed / spent.expected, spent.fixed / spent.batched
    numbers = f"{spent.expected / pools:>7.0f}{fewer:>7.2f}x{batched:>8.2f}x{100 * spent.agree:>7.1f}%"
    print(f"{name:25}{paper:>20}{table:>20}{successes:>3}{numbers}")


def quick() -> list[tuple[str, float]]:
    """For `make bench`."""
    return main(["--copies", "1"])


if __name__ == "__main__":
    main()
