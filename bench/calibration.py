"""Tables of calibration: how often intervals hold the truth, and how often noise is called a finding.

    python bench/calibration.py --table coverage            # intervals of base - policy in pass@k
    python bench/calibration.py --table headline            # leads claimed between two pools of one model
    python bench/calibration.py --table subsets             # NSCR at k = 64 from 64 and more samples

Every table prints its worst case last. `docs/statistics.md` quotes these.
"""

import argparse
import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from offleash.eval.stats.curves import beyond_noise, compare_curves
from offleash.eval.stats.passk import budgets, pass_at_k
from offleash.eval.stats.subsets import expected_cells
from offleash.eval.stats.support import cells_of, metrics

Floats = NDArray[np.float64]
Rng = np.random.Generator
RESAMPLES = 400


def sharpened(size: int, rng: Rng) -> tuple[Floats, Floats]:
    """The policy makes the likely likelier and loses some of the rare."""
    base = rng.beta(0.5, 1.2, size)
    return base, np.where(rng.random(size) < 0.45 * np.exp(-6 * base), 0.0, np.minimum(1.0, 1.35 * base))


def rare(size: int, rng: Rng) -> tuple[Floats, Floats]:
    """Hard problems, a tenth of which is lost."""
    base = rng.beta(0.1, 2.0, size)
    return base, np.where(rng.random(size) < 0.1, 0.0, base)


def few_lost(size: int, rng: Rng) -> tuple[Floats, Floats]:
    """Nothing changes but for one problem in twenty, which is lost."""
    base = rng.beta(0.5, 0.5, size)
    return base, np.where(rng.random(size) < 0.05, 0.0, base)


def unchanged(size: int, rng: Rng) -> tuple[Floats, Floats]:
    base = rng.beta(0.3, 0.8, size)
    return base, base


def lifted(size: int, rng: Rng) -> tuple[Floats, Floats]:
    """Every problem is solved more often."""
    base = rng.beta(0.5, 0.5, size)
    return base, np.sqrt(base)


def easy(size: int, rng: Rng) -> tuple[Floats, Floats]:
    """Nearly all is solved; one problem in 33 drops to a tenth."""
    base = rng.beta(8.0, 0.4, size)
    return base, np.where(rng.random(size) < 0.03, 0.1 * base, base)


POPULATIONS = (sharpened, rare, few_lost, unchanged, lifted, easy)


def coverage(trials: int, rng: Rng) -> None:
    """Coverage and mean width of the interval of base - policy at nominal .95."""
    n, ks = 64, [1, 8, 64]
    print(f"{'rates':10} {'problems':>8}" + "".join(f"  k = {k:<4} (width)" for k in ks))
    worst = (1.0, "")
    for rates in POPULATIONS:
        truth_k = np.subtract(*(np.array([(1 - (1 - side) ** k).mean() for k in ks]) for side in rates(1_000_000, rng)))
        for problems in (30, 100):
            held_k, width_k = np.zeros(len(ks)), np.zeros(len(ks))
            for _ in range(trials):
                base, policy = (pass_at_k(rng.binomial(n, side), n, ks) for side in rates(problems, rng))
                found = compare_curves(base, policy, ks, rng=rng, resamples=RESAMPLES).difference
                held_k += [e.low <= truth <= e.high for e, truth in zip(found, truth_k, strict=True)]
                width_k += [e.high - e.low for e in found]
            cells = zip(held_k / trials, width_k / trials, strict=True)
            print(
                f"{rates.__name__:10} {problems:>8}"
                + "".join(f"  {held:.3f}    ({width:.3f})" for held, width in cells)
            )
            worst = min([worst, *((held / trials, f"{rates.__name__}, {problems} problems, k = {k}")
                                  for held, k in zip(held_k, ks, strict=True))])  # fmt: skip
    print(f"worst: {worst[0]:.3f} ({worst[1]}); standard error {math.sqrt(0.95 * 0.05 / trials):.3f}")


def headline(trials: int, rng: Rng) -> None:
    """How often two pools of one model are said to differ at some k; nominal at most .05."""
    pairs = [(64, 64), (1024, 64), (64, 1024)]
    print(f"{'rates':10} {'problems':>8}" + "".join(f"  {one:>5} against {other:<5}" for one, other in pairs))
    worst = (0.0, "")
    for rates in (sharpened, rare, few_lost, unchanged, easy):
        for problems in (10, 30, 100):
            cells = []
            for n_base, n_policy in pairs:
                ks, claimed = budgets(min(n_base, n_policy)), 0
                for _ in range(trials):
                    rate_p, _ = rates(problems, rng)
                    base, policy = (pass_at_k(rng.binomial(n, rate_p), n, ks) for n in (n_base, n_policy))
                    claimed += bool(beyond_noise(base - policy, rng=rng, resamples=RESAMPLES).any())
                cells.append(claimed / trials)
                worst = max(worst, (cells[-1], f"{rates.__name__}, {problems} problems, {n_base} against {n_policy}"))
            print(f"{rates.__name__:10} {problems:>8}" + "".join(f"  {cell:>12.3f}       " for cell in cells))
    print(f"worst: {worst[0]:.3f} ({worst[1]}); standard error {math.sqrt(0.95 * 0.05 / trials):.3f}")


def subsets(trials: int, rng: Rng) -> None:
    """Mean and standard deviation of NSCR at k = 64 over pools of n samples of the same 300 problems."""
    base, policy = sharpened(300, rng)
    in_base, in_policy = (1 - (1 - side) ** 64 for side in (base, policy))
    print(f"truth {metrics(cells_of(in_base, in_policy).sum(axis=0))['nscr']:.4f}")
    for n in (64, 256, 1024):
        drawn = [expected_cells(rng.binomial(n, base), rng.binomial(n, policy), n, n, 64) for _ in range(trials)]
        nscr = metrics([cells.sum(axis=0) for cells in drawn])["nscr"]
        print(f"n = {n:<5} mean {nscr.mean():.4f}, standard deviation {nscr.std():.4f}")


TABLES: dict[str, Callable[[int, Rng], None]] = {"coverage": coverage, "headline": headline, "subsets": subsets}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", choices=TABLES, action="append", help="default: all")
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    for name in options.table or TABLES:
        print(f"{name}: {TABLES[name].__doc__}")
        TABLES[name](options.trials, np.random.default_rng(options.seed))


if __name__ == "__main__":
    main()
