"""Units lost and gained: reached by one side and not by the other."""

from typing import NamedTuple

import numpy as np

from offleash.eval.pool.counts import Hits

_ANY_CORRECT = "(the gold answer)"  # of a unit that any correct answer hits


class Change(NamedTuple):
    """A unit that one side reached and the other did not."""

    problem_id: str
    answer: str
    base_hits: int
    base_n: int
    policy_hits: int
    policy_n: int


def unit_changes(base: Hits, policy: Hits) -> dict[int, Change]:
    """Every unit that only one side reached, by its index."""
    changed = np.flatnonzero((base.unit_hits > 0) != (policy.unit_hits > 0)).tolist()
    return {u: _change(base, policy, u, int(base.unit_problem[u])) for u in changed}


def changes(base: Hits, policy: Hits) -> tuple[list[Change], list[Change]]:
    """Units lost and gained, those with the most hits first: noise explains them least."""
    found = unit_changes(base, policy).values()
    lost = sorted((change for change in found if change.base_hits), key=lambda change: -change.base_hits)
    gained = sorted((change for change in found if change.policy_hits), key=lambda change: -change.policy_hits)
    return lost, gained


def _change(base: Hits, policy: Hits, u: int, p: int) -> Change:
    return Change(
        problem_id=base.problem_ids[p],
        answer=base.unit_answer[u] or _ANY_CORRECT,
        base_hits=int(base.unit_hits[u]),
        base_n=int(base.n_p[p]),
        policy_hits=int(policy.unit_hits[u]),
        policy_n=int(policy.n_p[p]),
    )
