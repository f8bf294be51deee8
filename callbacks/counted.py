"""A pool read once, and all numbers of a measured step from two of them: the base's and the policy's.

The callback that samples through the trainer and the watcher that samples checkpoints both end here. Under a plan that
stops early (`eval.stats.stopping`) the numbers are those of the stopped experiment: pass@k by its unbiased estimator,
support of problems, everything else of the first `successes` samples of each problem, which every problem has whatever
its verdicts. What such a plan cannot tell (`metrics.withheld`) is NaN.
"""

import math
from typing import NamedTuple

import numpy as np

from offleash.callbacks import tags
from offleash.callbacks.metrics import (
    count_whole,
    interval_metrics,
    level_metrics,
    noise_metrics,
    sample_metrics,
    spelling_metrics,
    support_metrics,
    withheld,
)
from offleash.eval.comparison.align import as_one_unit
from offleash.eval.console import say
from offleash.eval.errors import PoolError
from offleash.eval.pool.counts import Hits, Tally
from offleash.eval.pool.ledger import Ledger
from offleash.eval.pool.pool import Pool
from offleash.eval.pool.spellings import Spelled
from offleash.eval.stats.passk import powers_of_two
from offleash.eval.stats.posterior import expected_metrics
from offleash.eval.stats.stopping import stopped_noise_test, stopped_pass_at_k
from offleash.eval.stats.support import EPS, detection_limit


class Counted(NamedTuple):
    """What a pool's numbers are made of: nothing done to the pool later changes one."""

    tally: Tally
    """Of all samples; of the first `successes` of each problem if the plan stops early."""
    hits: Hits
    """Of all samples. Under a plan that stops early a problem is one unit."""
    spelled: Spelled | None
    k: int
    successes: int | None
    """Where the plan stops a problem; None for a fixed one."""

    @property
    def samples(self) -> int:
        return int(self.hits.n_p.sum())


def count_pool(pool: Pool) -> Counted:
    """Raises PoolError for a pool that lacks samples of its plan."""
    k, successes = pool.spec.k, pool.spec.plan.successes
    if successes is None:
        tally = count_whole(pool)
        return Counted(tally, tally.hits, pool.spelled(), k, None)
    ledger = Ledger(pool)
    if not ledger.is_complete:
        raise PoolError(f"{pool.path} is incomplete: its plan is not done. Was a part removed? Restore it")
    # The plan does not look for a problem's other answers. Where a part was lost and drawn again, it may stop earlier.
    hits = as_one_unit(pool.tally(ledger.stop_p(successes, k)).hits)
    # Samples that end at a success are biased towards it, except for those that are drawn whatever comes.
    same_p = np.full(len(hits.n_p), min(successes, k))
    return Counted(pool.tally(same_p), hits, None, k, successes)


def count_base(pool: Pool) -> Counted:
    """`count_pool` of the base, with a warning if it solved nothing: then no support can be lost."""
    counted = count_pool(pool)
    if not counted.hits.correct_p.any():
        say(
            f"offleash: WARNING: the base solved none of {len(counted.hits.n_p)} problems in {counted.k} samples each, "
            f"so nothing can be lost. Read completions in {pool.path}: does the verifier understand their format?"
        )
    return counted


def pool_metrics(counted: Counted, temperature: float) -> dict[str, float]:
    """`sample_metrics`, whatever the plan."""
    found = sample_metrics(counted.tally, temperature)
    if counted.successes is None:
        return found
    ks, hits = powers_of_two(counted.k), counted.hits
    pass_pk = stopped_pass_at_k(hits.n_p, hits.correct_p, ks, successes=counted.successes, cap=counted.k)
    curve = {tags.pass_at(k).tag: float(value) for k, value in zip(ks, pass_pk.mean(axis=0), strict=True)}
    return found | curve | {tag: math.nan for tag in withheld(counted.k, counted.successes) if tag in found}


def step_metrics(base: Counted, policy: Counted, temperature: float) -> dict[str, float]:
    """Every number of a step but those about the measurement itself."""
    if (base.successes, base.k) != (policy.successes, policy.k):
        raise PoolError("base and policy were sampled under different plans: their support cannot be compared")
    found = {
        **pool_metrics(policy, temperature),
        **(_fixed_support(base, policy) if policy.successes is None else _stopped_support(base, policy)),
        **spelling_metrics(base.spelled, policy.spelled),
        tags.SAMPLES.tag: float(policy.samples),
    }
    unknown = set() if policy.successes is None else withheld(policy.k, policy.successes)
    return found | dict.fromkeys(unknown, math.nan)


def _fixed_support(base: Counted, policy: Counted) -> dict[str, float]:
    found = support_metrics(base.hits, policy.hits)
    return {**found, **noise_metrics(base.hits, policy.hits.n_p), **interval_metrics(base.hits, policy.hits)}


def _stopped_support(base: Counted, policy: Counted) -> dict[str, float]:
    one, other, successes = base.hits, policy.hits, policy.successes
    if one.problem_ids != other.problem_ids:
        raise PoolError("the two pools hold different problems: their support cannot be compared")
    assert successes is not None
    sides = (one.n_p, one.correct_p), (other.n_p, other.correct_p)
    noise = stopped_noise_test(*sides, successes=successes, cap=policy.k)
    bayes = expected_metrics(one.correct_p, other.correct_p, one.n_p, other.n_p, EPS)
    found = {
        **{getattr(tags.BAYES, name).tag: bayes[name] for name in tags.BAYES._fields},
        tags.DETECTION_LIMIT.tag: detection_limit(policy.k),
        **noise_metrics(one, policy.k, successes),
    }
    for level in (tags.UNIT, tags.PROBLEM):
        found |= level_metrics(level, one.correct_p, other.correct_p, noise)
    return found
