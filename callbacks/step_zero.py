"""At step 0 the policy is the base: two samples of one model, judged by one verifier, must agree.

If they do not, the base pool is not what it seems: its verdicts are those of an earlier verifier, or it was sampled
otherwise, or from other weights. Every number of the run would be measured against it, so the run stops.
"""

from collections.abc import Mapping

from offleash.callbacks import tags
from offleash.eval.errors import MonitorError
from offleash.eval.pool.counts import Hits
from offleash.eval.stats.shift import shift_p

LEVEL = 1e-6
"""Of three tests at this level, one run in 300,000 stops although nothing is wrong; a changed verifier or other weights
are far below it on a few dozen problems. (A p-value of strength cannot be that small: it comes from 1,999 deals.)"""


def check_step_0(metrics: Mapping[str, float], base: Hits, policy: Hits, base_pool: str, step_pool: str) -> None:
    """Raise MonitorError if the policy at step 0 does not solve what the base solves; `metrics` are those of step 0."""
    unit = tags.UNIT
    shift = shift_p(base.correct_p, policy.correct_p, base.n_p, policy.n_p)
    strange = [p for p in (shift, metrics[unit.p_shrunk.tag], metrics[unit.p_expanded.tag]) if p < LEVEL]  # NaN is not
    if strange:
        before, now = (hits.correct_p.sum() / hits.n_p.sum() for hits in (base, policy))
        raise MonitorError(
            f"step 0 is the base itself, but it differs from {base_pool} (pass@1 {before:.3f} there, {now:.3f} now, "
            f"{metrics[unit.shrunk.tag]:.0f} units lost, {metrics[unit.expanded.tag]:.0f} gained, p = "
            f"{min(strange):.0e}): the verifier, the sampling or the weights are not those of that pool. Move it away "
            f"to sample the base again, and remove {step_pool}"
        )
