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
    rates = [float(hits.correct_p.sum() / hits.n_p.sum()) for hits in (base, policy)]
    tests = {
        f"pass@1 is {rates[0]:.3f} in the base pool and {rates[1]:.3f} now": shift_p(
            base.correct_p, policy.correct_p, base.n_p, policy.n_p
        ),
        f"{metrics[tags.UNIT.shrunk.tag]:.0f} units are lost": metrics[tags.UNIT.p_shrunk.tag],
        f"{metrics[tags.UNIT.expanded.tag]:.0f} units are gained": metrics[tags.UNIT.p_expanded.tag],
    }
    strange = {words: p for words, p in tests.items() if p < LEVEL}  # NaN is not
    if strange:
        words = min(strange, key=lambda words: strange[words])
        raise MonitorError(
            f"step 0 is the base itself, but {words} (p = {strange[words]:.0e}): the verifier, the sampling or the "
            f"weights are not those that {base_pool} was made with. Move that pool away to sample the base again, "
            f"and remove {step_pool}"
        )
