"""Tables of calibration: how often intervals hold the truth, and how often noise is called a finding.

    python bench/calibration.py --table coverage            # intervals of base - policy in pass@k
    python bench/calibration.py --table headline            # leads claimed between two pools of one model
    python bench/calibration.py --table noise               # support called lost between two pools of one model
    python bench/calibration.py --table power               # lost support that is found
    python bench/calibration.py --table expected            # expected noise against the exact lab
    python bench/calibration.py --table bands               # how often a second sample lies in its band of noise
    python bench/calibration.py --table stopped             # the same for adaptive plans
    python bench/calibration.py --table subsets             # NSCR at k = 64 from 64 and more samples
    python bench/calibration.py --table leash               # the leash line from pools against the exact one

Every table prints its worst case last. `docs/statistics.md` quotes these.
"""

import argparse
import math
from collections.abc import Callable
from functools import cache

import numpy as np
from numpy.typing import NDArray

from offleash.eval.stats.bands import BANDED, expected_moves, noise_bands
from offleash.eval.stats.beta_binomial import fit_beta_binomial
from offleash.eval.stats.curves import beyond_noise, compare_curves
from offleash.eval.stats.exact_support import hit_by, sums
from offleash.eval.stats.leash.pools import pool_against_line
from offleash.eval.stats.leash.tilt import factors, solve, sums_by, tilt
from offleash.eval.stats.leash.verdict import verdict
from offleash.eval.stats.noise import NoiseTest, noise_test, one_sided
from offleash.eval.stats.passk import budgets, pass_at_k
from offleash.eval.stats.stopping import stopped_noise_test
from offleash.eval.stats.subsets import expected_cells, in_support
from offleash.eval.stats.support import cells_of, dynamics, metrics

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


def fixed_pools(rate_u: Floats, policy_u: Floats, n: int, rng: Rng) -> NoiseTest:
    return noise_test(rng.binomial(n, rate_u), rng.binomial(n, policy_u), n, n)


def competing(rate_u: Floats, n: int, rng: Rng) -> NDArray[np.int64]:
    """Hits of four answers per problem, which share its draws."""
    shares_pa = rate_u.reshape(-1, 4) / 4
    return np.concatenate([rng.multinomial(n, [*row, 1 - row.sum()])[:-1] for row in shares_pa])


def noise(trials: int, rng: Rng) -> None:
    """How often nothing is called a loss at p <= .05: by count, by strength, and one unit named (Holm)."""
    kinds = {"1 unit, 64": (1, 64, 64), "1 unit, 256 / 64": (1, 256, 64), "4 units, 64": (4, 64, 64),
             "4 units, 64 / 256": (4, 64, 256)}  # fmt: skip
    print(f"{'rates':10} {'pools':18} {'count':>6} {'strength':>9} {'named':>6}")
    worst = (0.0, "")
    for rates in (sharpened, rare, few_lost, easy):
        for kind, (units, n_base, n_policy) in kinds.items():
            claimed = np.zeros(3)
            for _ in range(trials):
                rate_u, _ = rates(40, rng)
                problem_u = np.arange(40) // units
                base, policy = (
                    rng.binomial(n, rate_u) if units == 1 else competing(rate_u, n, rng) for n in (n_base, n_policy)
                )
                lost = noise_test(base, policy, n_base, n_policy, problem_u, rng=rng).shrunk
                claimed += [lost.p <= 0.05, lost.p_strength <= 0.05, lost.sure_u.any()]
            cells = claimed / trials
            print(f"{rates.__name__:10} {kind:18} {cells[0]:>6.3f} {cells[1]:>9.3f} {cells[2]:>6.3f}")
            worst = max(worst, (float(cells.max()), f"{rates.__name__}, {kind}"))
    print(f"worst: {worst[0]:.3f} ({worst[1]}); standard error {math.sqrt(0.95 * 0.05 / trials):.3f}")


def power(trials: int, rng: Rng) -> None:
    """How often a planted loss is found at p <= .05: by count, by strength, and one unit named (Holm)."""
    print(f"{'problems':>8} {'k':>5} {'lost':>5} {'rest':>5} {'count':>6} {'strength':>9} {'named':>6}")
    cases = ((30, 64, 0.1, 1), (100, 64, 0.05, 1), (500, 256, 0.02, 1), (500, 256, 0.02, 3))
    for problems, k, gone, rest in cases:
        found = np.zeros(3)
        for _ in range(trials):
            base = rng.beta(0.5, 3.0, problems)
            policy = np.where(rng.random(problems) < gone, 0.0, np.minimum(rest * base, 1.0))
            lost = fixed_pools(base, policy, k, rng).shrunk
            found += [lost.p <= 0.05, lost.p_strength <= 0.05, lost.sure_u.any()]
        count, strength, named = found / trials
        print(f"{problems:>8} {k:>5} {gone:>5.2f} {f'x{rest}':>5} {count:>6.3f} {strength:>9.3f} {named:>6.3f}")


@cache
def lab_rates(problems: int) -> tuple[NDArray[np.int64], Floats]:
    """The true probability of every correct answer of the lab's base model: problem and rate of each unit."""
    from importlib.resources import files

    from transformers import AutoModelForCausalLM, AutoTokenizer

    from offleash.eval.scoring.exact import exact_units
    from offleash.eval.tasks import load_task

    folder = str(files("offleash.recipes") / "lab" / "base")
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    task = load_task("countdown", split="probe", n=problems)
    units = exact_units(model, tokenizer, task, task.problems, max_new_tokens=20)
    return units.unit_problem, units.probability_u


def drawn_units(problem_u: NDArray[np.int64], rate_u: Floats, n: int, rng: Rng) -> NDArray[np.int64]:
    groups = np.split(rate_u, np.flatnonzero(np.diff(problem_u)) + 1)
    return np.concatenate([rng.multinomial(n, [*row, max(0.0, 1 - row.sum())])[:-1] for row in groups])


def expected(trials: int, rng: Rng) -> None:
    """Expected losses of a second sample of the lab's base, 200 problems: truth, and mean and error of the estimates.

    The policy puts .7 of each problem's samples on its correct answers, most of it on the likeliest. By the base alone:
    given its pool, and over all pools it might have had. From pooled totals: what the p-values condition on, with an
    unmoved and with the moved policy.
    """
    trials = min(trials, 200)
    problem_u, rate_u = lab_rates(200)
    sharp_u = rate_u**3
    moved_u = 0.7 * sharp_u / np.bincount(problem_u, sharp_u)[problem_u]
    print(
        f"{'level':9} {'k':>4} {'truth':>6} {'given base':>16} {'over bases':>16} {'pooled':>7} {'pooled, moved':>14}"
    )
    for level in ("units", "problems"):
        for k in (64, 256):
            base_u, policy_u, of_u = rate_u, moved_u, problem_u
            if level == "problems":
                base_u, policy_u = np.bincount(problem_u, rate_u), np.bincount(problem_u, moved_u)
                of_u = np.arange(len(base_u))
            rows = []
            for _ in range(trials):
                hits, again, moved = (drawn_units(of_u, rate, k, rng) for rate in (base_u, base_u, policy_u))
                n = np.full(len(hits), k)
                fit = fit_beta_binomial(hits, n)
                given = expected_moves(hits, n, k, hits > 0).shrunk
                over = len(hits) * float(fit.miss(k) - fit.miss(2 * k))
                target = float(np.sum((1 - base_u[hits > 0]) ** k))
                pooled = [float(one_sided(hits + other, n, n, 1).sum()) for other in (again, moved)]
                rows.append([given, over, target, *pooled])
            given, over, target, pooled, pooled_moved = np.array(rows).T
            truth = float(np.sum((1 - base_u) ** k * (1 - (1 - base_u) ** k)))
            cells = [f"{one.mean():.2f} (rms {np.sqrt(np.mean((one - target) ** 2)):.2f})" for one in (given, over)]
            print(f"{level:9} {k:>4} {truth:>6.2f} {cells[0]:>16} {cells[1]:>16} {pooled.mean():>7.2f} "
                  f"{pooled_moved.mean():>14.2f}")  # fmt: skip


def bands(trials: int, rng: Rng) -> None:
    """How often SRR, NDR, NSCR and the counts of a second sample lie in their bands of noise; 100 problems."""
    trials = min(trials, 100)
    print(f"{'rates':13} {'k':>4} {'hits':>5} " + " ".join(f"{name:>9}" for name in BANDED))
    worst = (1.0, "")
    for kind in (lab_bands, beta_rates, single_rates, spread_rates, log_rates, gap_rates, cliff_rates):
        for k, threshold in ((16, 1), (64, 1), (64, 5)):
            inside = []
            for _ in range(trials):
                rate_pa = kind(100, rng)
                problem_u, rate_u = np.repeat(np.arange(len(rate_pa)), rate_pa.shape[1]), rate_pa.ravel()
                first, second = (drawn_units(problem_u, rate_u, k, rng) for _ in range(2))
                found, table = (
                    noise_bands(first, k, k, threshold, problem_u=problem_u),
                    dynamics(first, second, threshold),
                )
                inside.append([found[n].low - 1e-9 <= getattr(table, n) <= found[n].high + 1e-9 for n in BANDED])
            cells = np.mean(inside, axis=0).tolist()
            print(f"{kind.__name__:13} {k:>4} {threshold:>5} " + " ".join(f"{cell:>9.2f}" for cell in cells))
            worst = min(worst, (min(cells), f"{kind.__name__}, k = {k}, {threshold} hits"))
    print(f"worst: {worst[0]:.2f} ({worst[1]}); standard error {math.sqrt(0.95 * 0.05 / trials):.3f}")


def lab_bands(problems: int, rng: Rng) -> Floats:
    """The lab's base, exact; [problems, answers] with zeros behind the last answer."""
    problem_u, rate_u = lab_rates(problems)
    place_u = np.arange(problem_u.size) - np.searchsorted(problem_u, problem_u)
    rate_pa = np.zeros((int(problem_u.max()) + 1, int(place_u.max()) + 1))
    rate_pa[problem_u, place_u] = rate_u
    return rate_pa


def stopped(trials: int, rng: Rng) -> None:
    """Adaptive plans of 100 problems: expected and found losses, claims at p <= .05, and power at 20 % lost."""
    print(
        f"{'until':>5} {'cap':>5} {'expected':>9} {'found':>6} {'claimed':>8} {'strength':>9} {'named':>6} {'power':>6}"
    )
    worst = (0.0, "")
    for successes, cap in ((1, 64), (5, 64), (5, 512), (5, 8192)):
        plan = {"successes": successes, "cap": cap}
        null, found = [], []
        for _ in range(trials):
            rate = rng.beta(0.3, 2.0, 100)
            base = run_plan(rate, successes, cap, rng)
            null.append(stopped_noise_test(base, run_plan(rate, successes, cap, rng), **plan).shrunk)
            lost = np.where(rng.random(100) < 0.2, 0.0, rate)
            found.append(stopped_noise_test(base, run_plan(lost, successes, cap, rng), **plan).shrunk.p <= 0.05)
        claims = [[test.p <= 0.05, test.p_strength <= 0.05, test.sure_u.any()] for test in null]
        cells = np.mean(claims, axis=0).tolist()
        expected_mean, found_mean = np.mean([test.expected for test in null]), np.mean([test.observed for test in null])
        print(f"{successes:>5} {cap:>5} {expected_mean:>9.2f} {found_mean:>6.2f} {cells[0]:>8.3f} {cells[1]:>9.3f} "
              f"{cells[2]:>6.3f} {np.mean(found):>6.3f}")  # fmt: skip
        worst = max(worst, (max(cells), f"until {successes}, at most {cap}"))
    print(f"worst: {worst[0]:.3f} ({worst[1]}); standard error {math.sqrt(0.95 * 0.05 / trials):.3f}")


def run_plan(rate_p: Floats, successes: int, cap: int, rng: Rng) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Draws and successes of each problem under the plan: gaps between successes are geometric."""
    gaps_ps = np.minimum(rng.geometric(np.maximum(rate_p, 1e-300)[:, None], (len(rate_p), successes)), cap + 1)
    ends_ps = np.cumsum(gaps_ps, axis=1)
    hits_p = (ends_ps <= cap).sum(axis=1)
    return np.where(hits_p == successes, ends_ps[:, -1], cap), hits_p


def spread_rates(problems: int, rng: Rng) -> Floats:
    """[problems, answers]: over five orders of magnitude."""
    return rng.dirichlet([*[0.3] * 6, 1.5], problems)[:, :6] * 10 ** -rng.uniform(0, 3, (problems, 6))


def log_rates(problems: int, rng: Rng) -> Floats:
    """Evenly over seven orders of magnitude."""
    return _at_most_one(10 ** -rng.uniform(0.5, 7, (problems, 5)))


def gap_rates(problems: int, rng: Rng) -> Floats:
    """Half of the answers likely, half all but impossible."""
    likely = rng.random((problems, 4)) < 0.5
    return np.where(likely, rng.uniform(0.03, 0.2, likely.shape), 10 ** -rng.uniform(4, 8, likely.shape))


def cliff_rates(problems: int, rng: Rng) -> Floats:
    """Half of the answers likely, half of one rate near the detection limit."""
    return np.where(rng.random((problems, 4)) < 0.5, rng.uniform(0.03, 0.2, (problems, 4)), 4e-3)


def beta_rates(problems: int, rng: Rng) -> Floats:
    """One Beta for all."""
    return _at_most_one(rng.beta(0.2, 3, (problems, 5)))


def single_rates(problems: int, rng: Rng) -> Floats:
    """One answer per problem."""
    return rng.beta(0.3, 0.8, (problems, 1))


def _at_most_one(rate_pa: Floats) -> Floats:
    return rate_pa / np.maximum(1, 1.02 * rate_pa.sum(axis=1, keepdims=True))


def one_beta_line(
    hits: NDArray[np.int64], n: int, problem_u: NDArray[np.int64], goal: float, k: int, rng: Rng
) -> float:
    """The line's NSCR with a single Beta as prior of all rates."""
    a, b = fit_beta_binomial(hits, n).posterior(hits, n)
    base_bu = rng.beta(a, b, (64, a.size))
    base_bp = sums_by(base_bu, problem_u)
    grown_bp = factors(base_bp, solve(base_bp, np.ones(base_bp.shape), np.full(64, goal))[:, None])
    reached_u = hit_by(base_bu * grown_bp[:, problem_u], k).mean(axis=0)
    return float(metrics(cells_of(in_support(hits, n, k), reached_u).sum(axis=0))["nscr"])


def leash(trials: int, rng: Rng) -> None:
    """The leash line at k = 64 of 100 problems, from pools of the base and of the reweighted base itself.

    NSCR of the exact line given the base pool, its estimate (with root mean square error), that of a single Beta; the
    mean upper bound; how often the interval of policy less line holds 0, and how often reweighting is said to expand.
    """
    trials = min(trials, 100)
    kinds = (beta_rates, single_rates, spread_rates, log_rates, gap_rates, cliff_rates)
    print(f"{'rates':13} {'n':>4} {'w':>3} {'exact':>6} {'line':>6} {'rms':>5} {'one Beta':>9} {'bound':>6} "
          f"{'holds 0':>8} {'expands':>8}")  # fmt: skip
    worst = (0.0, "")
    for kind in kinds:
        for n in (64, 256):
            for weight in (1, 4, 20):
                rows = []
                for _ in range(trials):
                    rate_pa = kind(100, rng)
                    base_u, problem_u = rate_pa.ravel(), np.repeat(np.arange(100), rate_pa.shape[1])
                    tilted_u = tilt(base_u, problem_u, math.log(weight))
                    hits, policy = drawn_units(problem_u, base_u, n, rng), drawn_units(problem_u, tilted_u, 64, rng)
                    exact = metrics(cells_of(in_support(hits, n, 64), hit_by(tilted_u, 64)).sum(axis=0))["nscr"]
                    _, found = pool_against_line(hits, policy, n, 64, problem_u, rng=rng, resamples=RESAMPLES // 2)
                    single = one_beta_line(hits, n, problem_u, float(sums(tilted_u, problem_u).mean()), 64, rng)
                    holds, expands = found.above.low <= 0 <= found.above.high, verdict(found) == "expands"
                    rows.append([exact, found.line.value, single, found.line.high, holds, expands])
                exact_b, line_b = np.array(rows)[:, :2].T
                exact, line, single, bound, holds, expands = np.mean(rows, axis=0)
                error = math.sqrt(np.mean((line_b - exact_b) ** 2))
                print(f"{kind.__name__:13} {n:>4} {weight:>3} {exact:>6.3f} {line:>6.3f} {error:>5.3f} {single:>9.3f} "
                      f"{bound:>6.3f} {holds:>8.2f} {expands:>8.2f}")  # fmt: skip
                worst = max(worst, (float(expands), f"{kind.__name__}, n = {n}, w = {weight}"))
    print(f"worst: {worst[0]:.3f} ({worst[1]}); standard error {math.sqrt(0.025 * 0.975 / trials):.3f}")


TABLES: dict[str, Callable[[int, Rng], None]] = {
    "coverage": coverage,
    "headline": headline,
    "subsets": subsets,
    "noise": noise,
    "power": power,
    "expected": expected,
    "bands": bands,
    "stopped": stopped,
    "leash": leash,
}


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
