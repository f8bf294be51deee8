"""From pools to the numbers of a monitored step, by the tags of `callbacks.tags`.

`sample_metrics` needs one pool; `support_metrics` needs the hits of two.
"""

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from offleash.callbacks import tags
from offleash.callbacks.tags import Level, Metric
from offleash.eval.errors import PoolError
from offleash.eval.pool.counts import Hits
from offleash.eval.pool.pool import Pool
from offleash.eval.stats.entropy import answer_entropies
from offleash.eval.stats.noise import noise_test
from offleash.eval.stats.passk import pass_at_k, powers_of_two
from offleash.eval.stats.support import CELLS, METRICS, STABLE_HITS, detection_limit, dynamics


def sampled(k: int, temperature: float) -> tuple[Metric, ...]:
    """What `sample_metrics` computes from k samples per problem."""
    return (*map(tags.pass_at, powers_of_two(k)), tags.token_entropy(temperature), *tags.SAMPLED)


def measured(k: int, temperature: float) -> tuple[Metric, ...]:
    """What SupportCallback measures at a step; base and policy have the same budget k there."""
    levels = (metric for level in (tags.UNIT, tags.PROBLEM) for metric in level if metric != level.expected_expanded)
    return (*sampled(k, temperature), *levels, tags.DETECTION_LIMIT, tags.SAMPLES, tags.SECONDS, tags.SECONDS_TOTAL)


def pass_curve(metrics: Mapping[str, float], k: int) -> dict[int, float]:
    """pass@1, 2, 4, ... up to k of one step's metrics."""
    return {budget: metrics[tags.pass_at(budget).tag] for budget in powers_of_two(k)}


def sample_metrics(pool: Pool, temperature: float) -> dict[str, float]:
    """Of one pool's model: pass@k and entropies (means over problems), lengths, failure rates, KL to the base.

    `temperature`: what the logits were divided by for the token entropies in the pool.
    """
    hits = pool.hits()
    if not len(hits.n_p) or not hits.n_p.min():
        raise PoolError(f"{pool.path} has problems without a sample: the pool is incomplete")
    ks = powers_of_two(int(hits.n_p.min()))
    pass_k = pass_at_k(hits.correct_p, hits.n_p, ks).mean(axis=0)
    answers = pool.answer_counts()
    entropy_p, corrected_p = answer_entropies(answers.problem_c, answers.count_c, len(hits.n_p))
    table = pool.read(["status", "tokens", "logprob", "base_logprob", "entropy"])
    return {
        **{tags.pass_at(k).tag: float(value) for k, value in zip(ks, pass_k, strict=True)},
        tags.ANSWER_ENTROPY.tag: float(entropy_p.mean()),
        tags.ANSWER_ENTROPY_CORRECTED.tag: float(corrected_p.mean()),
        tags.token_entropy(temperature).tag: _mean(table.column("entropy")),
        tags.DISTINCT_CORRECT.tag: float(np.count_nonzero(hits.unit_hits) / len(hits.n_p)),
        tags.RESPONSE_LENGTH.tag: _mean(table.column("tokens")),
        **status_rates(table.column("status")),
        tags.KL_TO_BASE.tag: _mean(pc.subtract(table.column("logprob"), table.column("base_logprob"))),
    }


def support_metrics(base: Hits, policy: Hits) -> dict[str, float]:
    """Dynamics of units and of problems against the base, with what sampling noise alone would show."""
    if base.problem_ids != policy.problem_ids or base.unit_answer != policy.unit_answer:
        raise PoolError("the two pools hold different problems: their support cannot be compared")
    problems = np.arange(len(base.problem_ids))
    n_base_u, n_policy_u = base.n_p[base.unit_problem], policy.n_p[policy.unit_problem]
    return {
        tags.DETECTION_LIMIT.tag: detection_limit(int(min(base.n_p.min(), policy.n_p.min()))),
        **_level(tags.UNIT, base.unit_hits, policy.unit_hits, n_base_u, n_policy_u, base.unit_problem),
        **_level(tags.PROBLEM, base.correct_p, policy.correct_p, base.n_p, policy.n_p, problems),
    }


def _level(
    level: Level,
    base_hits: np.ndarray,
    policy_hits: np.ndarray,
    n_base: np.ndarray,
    n_policy: np.ndarray,
    problem: np.ndarray,
) -> dict[str, float]:
    table, stable = dynamics(base_hits, policy_hits), dynamics(base_hits, policy_hits, threshold=STABLE_HITS)
    noise = noise_test(base_hits, policy_hits, n_base, n_policy, problem)
    values = {
        **{getattr(level, name): float(getattr(table, name)) for name in (*CELLS, *METRICS)},
        **{getattr(level, f"{name}_hits{STABLE_HITS}"): getattr(stable, name) for name in METRICS},
        level.expected_shrunk: noise.shrunk.expected,
        level.p_shrunk: noise.shrunk.p,
        level.p_expanded: noise.expanded.p,
    }
    if np.any(n_base != n_policy):  # with equal budgets it is expected_shrunk again
        values[level.expected_expanded] = noise.expanded.expected
    return {metric.tag: value for metric, value in values.items()}


def status_rates(status: pa.ChunkedArray) -> dict[str, float]:
    """Fractions of completions that were truncated, had no answer, timed out, or on which the verifier failed."""
    words, counts = np.unique(status.to_numpy(zero_copy_only=False).astype(str), return_counts=True)
    share = dict(zip(words.tolist(), (counts / counts.sum()).tolist(), strict=True))
    return {
        tags.TRUNCATED.tag: share.get("truncated", 0.0),
        tags.NO_ANSWER.tag: share.get("no_answer", 0.0),
        tags.TIMED_OUT.tag: share.get("timeout", 0.0),
        tags.FAILED.tag: share.get("error", 0.0),
    }


def _mean(column: pa.ChunkedArray) -> float:
    """NaN if every value is missing."""
    value = pc.mean(column).as_py()
    return float("nan") if value is None else float(value)
