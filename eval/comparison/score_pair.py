"""Two pools brought to the same draws, with what `offleash score` found out about their completions.

Scores replace what was recorded while drawing, all of it or nothing: numbers of one cell are measured one way. A model
is told by the fingerprint of its weights, never by a name. So a base's pool and a policy's, each scored under both
models, give four perplexities: those of the paper's Table 2, of the models' own completions.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from offleash.eval.comparison import align as paired
from offleash.eval.comparison.align import Arm, Paired, Reader
from offleash.eval.pool.pool import Pool
from offleash.eval.scoring.score_folder import ScoreFolder, ScoreRows, find_scores
from offleash.eval.scoring.summary import problem_means

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Scored(NamedTuple):
    """The scores of a pool's completions under one model, and those of the draws that are compared."""

    folder: ScoreFolder
    rows: ScoreRows
    problems: int

    def means(self, value_s: Floats) -> Floats:
        return problem_means(self.rows.problem_r, value_s, self.problems)


class Sides(NamedTuple):
    """One pool's completions under the model that drew them and under the other; None is not scored."""

    own: Scored | None
    other: Scored | None

    @property
    def used(self) -> list[Scored]:
        return list({one.folder.path: one for one in self if one is not None}.values())


def pair(base: Reader, policy: Reader, k: int | None = None) -> Paired:
    """`paired.pair`, with the scores that the two pools hold."""
    found = paired.pair(base, policy, k)
    of_base = _scored(base.pool, policy.pool, _limit(found, found.base_limit_p))
    of_policy = _scored(policy.pool, base.pool, _limit(found, found.policy_limit_p))
    return replace(
        found,
        base=_with_scores(found.base, found.kept, of_base, "policy_nll"),
        policy=_with_kl(
            _with_scores(found.policy, found.kept, of_policy, "base_nll"), found.kept, policy.pool, of_policy
        ),
        notes=(*found.notes, *_notes(found, of_base, of_policy)),
    )


def _limit(found: Paired, limit_p: Ints) -> Ints:
    """As `paired` does for rates and entropies: draws up to a success are biased towards it."""
    return limit_p if found.plan is None else np.full(len(limit_p), found.rows_k)


def _scored(pool: Pool, other: Pool, limit_p: Ints) -> Sides:
    folders = list(find_scores(pool))
    return Sides(*(_under(folders, weights, limit_p) for weights in (pool.spec.weights, other.spec.weights)))


def _under(folders: Sequence[ScoreFolder], weights: str, limit_p: Ints) -> Scored | None:
    """Scored more than once, at temperature 1 comes first."""
    fitting = [folder for folder in folders if folder.spec.weights == weights]
    if not fitting:
        return None
    folder = min(fitting, key=lambda folder: (folder.spec.temperature != 1, folder.name))
    rows = folder.read()
    rows = rows.where(np.isfinite(rows.logprob_r) & (rows.index_r < limit_p[rows.problem_r]))
    return Scored(folder, rows, len(limit_p)) if len(rows.index_r) else None


def _with_scores(arm: Arm, kept: Ints, sides: Sides, other_name: str) -> Arm:
    values = dict(arm.values)
    if sides.own is not None:
        values["token_entropy"] = sides.own.means(sides.own.rows.entropy_r)[kept]
        values["nll"] = sides.own.means(sides.own.rows.nll_r)[kept]
    if sides.other is not None:
        values[other_name] = sides.other.means(sides.other.rows.nll_r)[kept]
    return replace(arm, values=values)


def _with_kl(arm: Arm, kept: Ints, pool: Pool, sides: Sides) -> Arm:
    """log p - log p_base averages to the KL only over draws of the very p that was scored."""
    spec, own, base = pool.spec, sides.own, sides.other
    if own is None or base is None or not spec.untruncated:
        return arm
    one, other = own.folder.spec, base.folder.spec
    if one.template != other.template or not one.temperature == other.temperature == spec.temperature:
        return arm
    key, base_key = (scored.rows.problem_r * spec.k + scored.rows.index_r for scored in (own, base))
    _, i, j = np.intersect1d(key, base_key, assume_unique=True, return_indices=True)
    kl_s = own.rows.logprob_r[i] - base.rows.logprob_r[j]
    kl_p = problem_means(own.rows.problem_r[i], kl_s, own.problems)
    return replace(arm, values={**arm.values, "kl_base_k1": kl_p[kept]})


def _notes(found: Paired, base: Sides, policy: Sides) -> list[str]:
    notes = [
        _note(found.task, side, scored) for side, sides in (("base", base), ("policy", policy)) for scored in sides.used
    ]
    temperatures = {scored.folder.spec.temperature for sides in (base, policy) for scored in sides.used}
    if len(temperatures) > 1:
        words = " and ".join(f"{t:g}" for t in sorted(temperatures))
        notes.append(f"{found.task}: NOT COMPARABLE: scores at temperatures {words}; score all at one")
    unscored = [side for side, sides in (("base", base), ("policy", policy)) if sides.own is None]
    if len(unscored) == 1 and np.isfinite(getattr(found, unscored[0]).values["nll"]).any():
        notes.append(
            f"{found.task}: NOT COMPARABLE: the {unscored[0]}'s own token entropy and perplexity are as recorded while "
            "drawing (sampling temperature and truncation), the other side's are scored; score both"
        )
    return notes


def _note(task: str, side: str, scored: Scored) -> str:
    folder, rows = scored.folder, scored.rows
    known = int(np.isfinite(rows.drawn_r).sum())
    other = f"; {int(rows.retokenized_r.sum()):,} of {known:,} in another number of tokens than drawn" if known else ""
    return (
        f"{task}: {len(rows.index_r):,} of the {side}'s completions scored under {folder.name} at temperature "
        f"{folder.spec.temperature:g}{other}"
    )
