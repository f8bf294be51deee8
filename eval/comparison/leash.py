"""The policy beside the KL-optimal reweighting of the base at its pass@1, estimated from the base's pools."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from offleash.eval.comparison.result import Leash, LeashLevel, Level, Scope
from offleash.eval.comparison.scopes import Part, Settings, joined_hits
from offleash.eval.stats.leash.pools import PoolLine, pool_against_line
from offleash.eval.stats.leash.verdict import verdict
from offleash.eval.stats.support import CELLS

_RESAMPLES = 500  # at most: each has draws of all rates


def leash(parts: Sequence[Part], ks: Sequence[int], one_unit: bool, settings: Settings) -> Leash | None:
    """None without units, and for adaptive plans, which stop counting hits.

    `ks` are the budgets of the pass@k curves; `one_unit`: every problem is one unit, so that both levels are the same.
    """
    if any(part.aligned.plan is not None for part in parts) or not joined_hits(parts, "unit").base.size:
        return None
    rng = np.random.default_rng([settings.seed, 3])

    def level(name: Literal["unit", "problem"], budgets: Sequence[int] = ()) -> tuple[PoolLine, LeashLevel]:
        hits = joined_hits(parts, name)
        line, found = pool_against_line(
            *hits[:5],
            k_u=hits.k,
            ks=budgets,
            rng=rng,
            confidence=settings.confidence,
            resamples=min(settings.resamples, _RESAMPLES),
        )
        return line, LeashLevel(dict(zip(CELLS, line.cells.tolist(), strict=True)), found, verdict(found))

    most = int(joined_hits(parts, "problem").n_base.min())
    line, problems = level("problem", [k for k in ks if k <= most])
    units = problems if one_unit else level("unit")[1]
    return Leash(units, problems, tuple(line.pass_at_k.get(k, math.nan) for k in ks))


def with_nscr_of(leash: Leash, scope: Scope) -> Scope:
    """The scope with NSCR as the verdict has it: one number has one interval, wherever it is shown."""

    def of(level: Level, line: LeashLevel) -> Level:
        estimates = {**level.any_hit.estimates, "nscr": line.against.nscr}
        return replace(level, any_hit=replace(level.any_hit, estimates=estimates))

    return replace(
        scope, units=of(scope.units, leash.units), problem_level=of(scope.problem_level, leash.problem_level)
    )
