"""At step 0 the policy is the base: two samples of one model, judged by one verifier, must agree.

If they do not, the base pool is not what it seems: its verdicts are those of an earlier verifier, or it was sampled
otherwise, or from other weights. Every number of the run would be measured against it, so the run stops.
"""

from collections.abc import Mapping

import numpy as np

from offleash.callbacks import tags
from offleash.callbacks.counted import Counted
from offleash.eval.errors import MonitorError
from offleash.eval.stats.shift import exchange_p, shift_p
from offleash.eval.stats.stopping import stopped_pass_at_k

LEVEL = 1e-6
"""Of three tests at this level, one run in 300,000 stops although nothing is wrong; a changed verifier or other weights
are far below it on a few dozen problems. (A p-value of strength cannot be that small: it comes from 1,999 deals.)"""


def check_step_0(metrics: Mapping[str, float], base: Counted, policy: Counted, base_pool: str, step_pool: str) -> None:
    """Raise MonitorError if the policy at step 0 does not solve what the base solves; `metrics` are those of step 0."""
    unit = tags.UNIT
    before_p, now_p = _pass_at_1(base), _pass_at_1(policy)
    if policy.successes is None:
        one, other = base.hits, policy.hits
        shift = shift_p(one.correct_p, other.correct_p, one.n_p, other.n_p)
    else:
        shift = exchange_p(before_p - now_p)
    strange = [p for p in (shift, metrics[unit.p_shrunk.tag], metrics[unit.p_expanded.tag]) if p < LEVEL]  # NaN is not
    if strange:
        raise MonitorError(
            f"step 0 is the base itself, but it differs from {base_pool} (pass@1 {before_p.mean():.3f} there, "
            f"{now_p.mean():.3f} now, {metrics[unit.shrunk.tag]:.0f} units lost, {metrics[unit.expanded.tag]:.0f} "
            f"gained, p = {min(strange):.0e}): the verifier, the sampling or the weights are not those of that pool. "
            f"Move it away to sample the base again, and remove {step_pool}"
        )


def _pass_at_1(counted: Counted) -> np.ndarray:
    """Of each problem, unbiased."""
    hits = counted.hits
    if counted.successes is None:
        return np.asarray(hits.correct_p / hits.n_p)
    return stopped_pass_at_k(hits.n_p, hits.correct_p, [1], successes=counted.successes, cap=counted.k)[:, 0]
