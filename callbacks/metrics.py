"""From pools to the numbers of a monitored step: every tag that TensorBoard shows of a pool is made here.

`sample_metrics` needs one pool; `support_metrics` needs the hits of two.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from offleash.eval.errors import PoolError
from offleash.eval.pool.counts import Hits
from offleash.eval.pool.pool import Pool
from offleash.eval.stats.entropy import answer_entropies
from offleash.eval.stats.noise import noise_test
from offleash.eval.stats.passk import pass_at_k, powers_of_two
from offleash.eval.stats.support import STABLE_HITS, detection_limit, dynamics


def base_tag(tag: str) -> str:
    """Where the base's value of a metric stands: in the metric's own group (`pass_at_k/1` -> `pass_at_k/base/1`)."""
    group, name = tag.split("/", 1)
    return f"{group}/base/{name}"


def token_entropy_tag(temperature: float) -> str:
    """The temperature that the logits were divided by is part of the name."""
    return f"entropy/token_T{temperature:g}"


def sample_metrics(pool: Pool, token_entropy: str) -> dict[str, float]:
    """What one pool says of its model: pass@k and entropies (means over problems), lengths, failure rates, KL."""
    hits = pool.hits()
    if not len(hits.n_p) or not hits.n_p.min():
        raise PoolError(f"{pool.path} has problems without a sample: it was not drawn to its end")
    ks = powers_of_two(int(hits.n_p.min()))
    pass_k = pass_at_k(hits.correct_p, hits.n_p, ks).mean(axis=0)
    table = pool.read(["status", "tokens", "logprob", "base_logprob", "entropy"])
    return {
        **{f"pass_at_k/{k}": float(value) for k, value in zip(ks, pass_k, strict=True)},
        **_answer_entropies(pool),
        token_entropy: _mean(table.column("entropy")),
        "support/distinct_correct": float(np.count_nonzero(hits.unit_hits) / len(hits.n_p)),
        "verify/response_length": _mean(table.column("tokens")),
        **_status_rates(table.column("status")),
        "monitor/kl_base_k1": _mean(pc.subtract(table.column("logprob"), table.column("base_logprob"))),
    }


def support_metrics(base: Hits, policy: Hits) -> dict[str, float]:
    """Dynamics of units and of problems against the base, with the noise that sampling alone would show."""
    if base.problem_ids != policy.problem_ids or base.unit_answer != policy.unit_answer:
        raise PoolError("the two pools are of different problems: their support cannot be compared")
    problems = np.arange(len(base.problem_ids))
    n_base_u, n_policy_u = base.n_p[base.unit_problem], policy.n_p[policy.unit_problem]
    return {
        "support/floor": detection_limit(int(min(base.n_p.min(), policy.n_p.min()))),
        **_level("unit", base.unit_hits, policy.unit_hits, n_base_u, n_policy_u, base.unit_problem),
        **_level("problem", base.correct_p, policy.correct_p, base.n_p, policy.n_p, problems),
    }


def _level(
    name: str,
    base_hits: np.ndarray,
    policy_hits: np.ndarray,
    n_base: np.ndarray,
    n_policy: np.ndarray,
    problem: np.ndarray,
) -> dict[str, float]:
    table, stable = dynamics(base_hits, policy_hits), dynamics(base_hits, policy_hits, threshold=STABLE_HITS)
    noise = noise_test(base_hits, policy_hits, n_base, n_policy, problem)
    values = {
        **{part: float(getattr(table, part)) for part in ("preserved", "shrunk", "expanded", "out")},
        **{metric: getattr(table, metric) for metric in ("srr", "ndr", "sds", "nscr")},
        **{f"{metric}_hits{STABLE_HITS}": getattr(stable, metric) for metric in ("srr", "ndr", "sds", "nscr")},
        "expected_shrunk": noise.shrunk.expected,
        "expected_expanded": noise.expanded.expected,
        "p_shrunk": noise.shrunk.p,
        "p_expanded": noise.expanded.p,
    }
    return {f"support/{name}/{metric}": value for metric, value in values.items()}


def _answer_entropies(pool: Pool) -> dict[str, float]:
    counts = pool.answer_counts()
    plain_p, corrected_p = answer_entropies(counts.problem_c, counts.count_c, len(counts.problem_ids))
    return {"entropy/answer": float(plain_p.mean()), "entropy/answer_corrected": float(corrected_p.mean())}


def _status_rates(status: pa.ChunkedArray) -> dict[str, float]:
    words, counts = np.unique(status.to_numpy(zero_copy_only=False).astype(str), return_counts=True)
    share = dict(zip(words.tolist(), (counts / counts.sum()).tolist(), strict=True))
    return {
        "verify/truncated": share.get("truncated", 0.0),
        "verify/no_answer": share.get("no_answer", 0.0),
        "verify/failed": share.get("timeout", 0.0) + share.get("error", 0.0),
    }


def _mean(column: pa.ChunkedArray) -> float:
    """NaN if nothing is known."""
    value = pc.mean(column).as_py()
    return float("nan") if value is None else float(value)
