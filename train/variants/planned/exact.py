"""A run's exact probabilities at every measured step, and what follows from them on all problems and on most of them.

The files are those of `monitor_exact: true`: exact/step-000100.npz, step 0 the base. Every number is computed on all
problems and, for the jackknife over problems (`twoway`), without each of a few groups of them; `_g` counts these sets,
the first of which is all problems. NSCR(eps) is the ratio of two sums over problems, so each set is one product with
the per-problem sums. The leash line of a set is at the policy's pass@1 on that set.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from offleash.eval.errors import ConfigError
from offleash.eval.stats.exact_support import EPSILONS, check_probabilities
from offleash.eval.stats.leash.tilt import factors, solve

FOLDER = "exact"
GROUPS = 20
"""Of problems, left out one at a time."""

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class ExactPath:
    """Probabilities of the same units at every measured step, of which the first is step 0: the base."""

    steps: tuple[int, ...]
    probability_tu: Floats
    problem_u: Ints
    """Index of each unit's problem, among the problems that have units."""

    @property
    def base_u(self) -> Floats:
        return self.probability_tu[0]

    @property
    def problems(self) -> int:
        return int(self.problem_u.max()) + 1

    def correct_tp(self) -> Floats:
        """The probability of any correct answer, at most 1."""
        return np.minimum(_by_problem(self.probability_tu, self.problem_u), 1.0)


@dataclass(frozen=True, slots=True, eq=False)
class ExactRun:
    """The outcomes of one run. `_t` measured steps, `_g` sets of problems, `_e` floors (EPSILONS)."""

    steps: tuple[int, ...]
    pass_tg: Floats
    nscr_tge: Floats
    line_ge: Floats
    """NSCR of the KL-optimal reweighting of the base at the pass@1 of the last step."""
    log_weight: float
    """ln w of that reweighting, on all problems."""
    reached_e: Ints
    """Units above the floor at the last step that are below it in the base."""
    gained_e: Ints
    """Problems, likewise."""
    lost_e: Ints


def read_path(folder: Path) -> ExactPath:
    """Raises ConfigError if step 0 is missing or a file cannot be read."""
    files = sorted((folder / FOLDER).glob("step-*.npz"))
    if not files or _step(files[0]) != 0:
        raise ConfigError(f"{folder / FOLDER} has no step 0: a run needs `monitor_exact: true` from its start")
    rows, problem_u = [], None
    for file in files:
        try:
            with np.load(file, allow_pickle=False) as arrays:
                probability_u, of_units = arrays["probability_u"].astype(np.float64), arrays["unit_problem"]
            check_probabilities("its", probability_u, of_units)
        except (OSError, ValueError, KeyError, EOFError, BadZipFile) as error:
            raise ConfigError(f"{file} cannot be read ({error}): remove {folder} to train the run again") from error
        if problem_u is None:
            problem_u = of_units
        if not np.array_equal(of_units, problem_u):
            raise ConfigError(f"{file} has other units than {files[0].name}: remove {folder} to train the run again")
        rows.append(probability_u)
    assert problem_u is not None
    _, index_u = np.unique(problem_u, return_inverse=True)
    return ExactPath(tuple(map(_step, files)), np.array(rows), index_u.astype(np.int64))


def check_same_base(paths: Mapping[str, ExactPath]) -> None:
    """Raises ConfigError if two runs were measured on other units, or from another base."""
    (first, of_first), *others = paths.items()
    for name, path in others:
        same = np.array_equal(path.problem_u, of_first.problem_u)
        if not same or not np.allclose(path.base_u, of_first.base_u, rtol=1e-2, atol=1e-9):
            raise ConfigError(f"{name} and {first} were measured from different bases or on different problems")


def problem_sets(problems: int, groups: int = GROUPS) -> NDArray[np.bool_]:
    """[1 + groups, problems]: all problems, then all but one group. The groups are drawn by a fixed seed."""
    if problems < 2:
        raise ConfigError(f"a sweep needs at least 2 problems with correct answers, got {problems}")
    groups = min(groups, problems)
    of_group_p = np.random.default_rng(0).permutation(problems) % groups
    return np.vstack([np.ones((1, problems), dtype=bool), of_group_p[None] != np.arange(groups)[:, None]])


def outcomes(path: ExactPath, epsilons: tuple[float, ...] = EPSILONS) -> ExactRun:
    set_gp = problem_sets(path.problems).astype(np.float64)
    pass_tg = path.correct_tp() @ set_gp.T / set_gp.sum(axis=1)
    above_tue = path.probability_tu[:, :, None] >= np.array(epsilons)
    nscr_tge = np.array([_nscr(above_tue[0], above_ue, path.problem_u, set_gp) for above_ue in above_tue])
    line_ge, log_weight_g = leash_nscr(path, set_gp, pass_tg[-1], epsilons)
    above_tpe = path.correct_tp()[:, :, None] >= np.array(epsilons)
    return ExactRun(
        steps=path.steps,
        pass_tg=pass_tg,
        nscr_tge=nscr_tge,
        line_ge=line_ge,
        log_weight=float(log_weight_g[0]),
        reached_e=(above_tue[-1] & ~above_tue[0]).sum(axis=0),
        gained_e=(above_tpe[-1] & ~above_tpe[0]).sum(axis=0),
        lost_e=(above_tpe[0] & ~above_tpe[-1]).sum(axis=0),
    )


def leash_nscr(
    path: ExactPath, set_gp: Floats, pass_g: Floats, epsilons: tuple[float, ...] = EPSILONS
) -> tuple[Floats, Floats]:
    """NSCR of the KL-optimal reweighting of the base at a pass@1 for each set of problems, and its ln w.

    NaN where no reweighting has this pass@1.
    """
    base_p = path.correct_tp()[0]
    log_weight_g = solve(np.broadcast_to(base_p, set_gp.shape), set_gp, np.asarray(pass_g, dtype=np.float64))
    factor_gp = factors(base_p, log_weight_g[:, None])
    floors = np.array(epsilons)
    in_base_ue = path.base_u[:, None] >= floors
    found = np.full((len(set_gp), len(floors)), np.nan)
    for g, factor_p in enumerate(factor_gp):
        if not np.isnan(log_weight_g[g]):
            tilted_ue = (path.base_u * factor_p[path.problem_u])[:, None] >= floors
            found[g] = _nscr(in_base_ue, tilted_ue, path.problem_u, set_gp[g : g + 1])[0]
    return found, log_weight_g


def _nscr(base_ue: NDArray[np.bool_], policy_ue: NDArray[np.bool_], problem_u: Ints, set_gp: Floats) -> Floats:
    """(gained - lost) / union for each set of problems and floor; NaN where the union is empty."""
    net_ep = _by_problem((policy_ue.astype(float) - base_ue).T, problem_u)
    union_ep = _by_problem((policy_ue | base_ue).T.astype(float), problem_u)
    net_ge, union_ge = set_gp @ net_ep.T, set_gp @ union_ep.T
    return np.divide(net_ge, union_ge, out=np.full(net_ge.shape, np.nan), where=union_ge > 0)


def _by_problem(rows_xu: Floats, problem_u: Ints) -> Floats:
    """Of every row, the sum over each problem's units."""
    return np.array([np.bincount(problem_u, row_u, int(problem_u.max()) + 1) for row_u in rows_xu])


def _step(file: Path) -> int:
    return int(file.stem.removeprefix("step-"))
