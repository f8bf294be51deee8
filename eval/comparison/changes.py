"""Units that one side reached and the other did not."""

from typing import NamedTuple

from offleash.eval.pool.counts import Hits


class Change(NamedTuple):
    """A unit that one side reached and the other did not."""

    problem_id: str
    answer: str
    base_hits: int
    base_n: int
    policy_hits: int
    policy_n: int


def changes(base: Hits, policy: Hits) -> tuple[list[Change], list[Change]]:
    """Units lost and gained, those that noise explains least first."""
    rows = [
        Change(
            problem_id=base.problem_ids[p],
            answer=base.unit_answer[u] or "(the gold answer)",
            base_hits=int(base.unit_hits[u]),
            base_n=int(base.n_p[p]),
            policy_hits=int(policy.unit_hits[u]),
            policy_n=int(policy.n_p[p]),
        )
        for u, p in enumerate(base.unit_problem.tolist())
        if bool(base.unit_hits[u]) != bool(policy.unit_hits[u])
    ]
    lost = sorted((row for row in rows if row.base_hits), key=lambda row: -row.base_hits)
    gained = sorted((row for row in rows if row.policy_hits), key=lambda row: -row.policy_hits)
    return lost, gained
