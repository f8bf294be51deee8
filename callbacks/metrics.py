"""From pools to the numbers of a monitored step, by the tags of `callbacks.tags`.

`sample_metrics` needs what was counted of one pool; `support_metrics` needs the hits of two; `spelling_metrics` those
of their spellings. `callbacks.counted` puts them together.
"""

import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from offleash.callbacks import tags
from offleash.callbacks.tags import Band, Bands, Bounds, Intervals, Level, Metric
from offleash.eval.errors import PoolError
from offleash.eval.pool.counts import STATUSES, VALUES, Hits, Tally
from offleash.eval.pool.pool import Pool
from offleash.eval.pool.spellings import Spelled, match_spellings, respelled
from offleash.eval.stats.bands import noise_bands, pass_at_1_band
from offleash.eval.stats.curves import mean_interval
from offleash.eval.stats.diversity import effective_answers
from offleash.eval.stats.intervals import Estimate
from offleash.eval.stats.leash.against import AgainstLine
from offleash.eval.stats.leash.pools import pool_against_line, pool_line
from offleash.eval.stats.leash.verdict import Word, verdict
from offleash.eval.stats.noise import NoiseTest, noise_test
from offleash.eval.stats.passk import TAUS, cover_at_tau, pass_at_k, powers_of_two
from offleash.eval.stats.posterior import expected_metrics
from offleash.eval.stats.support import (
    CELLS,
    EPS,
    METRICS,
    STABLE_HITS,
    bootstrap_dynamics,
    cells_of,
    detection_limit,
    dynamics,
)

_RESAMPLES = 100  # for the bounds of the leash line: enough for a word, and soon done
_INTERVAL_RESAMPLES = 1000
_UNKNOWN = Estimate(math.nan, math.nan, math.nan, 0)


def sampled(k: int, temperature: float) -> tuple[Metric, ...]:
    """What `sample_metrics` computes from k samples per problem."""
    passes, covers = map(tags.pass_at, powers_of_two(k)), map(tags.cover_at, TAUS)
    return (*passes, *covers, tags.token_entropy(temperature), *tags.SAMPLED)


def measured(k: int, temperature: float, successes: int | None = None) -> tuple[Metric, ...]:
    """What SupportCallback measures at a step; base and policy have the same budget k there.

    `successes`: where the plan stops a problem; None for a fixed one.
    """
    levels = (*tags.UNIT, *tags.PROBLEM)
    line = (*tags.LEASH, *map(tags.leash_pass_at, powers_of_two(k)))
    bands = (*tags.NOISE, *tags.INTERVALS)
    every = (*sampled(k, temperature), *levels, tags.DETECTION_LIMIT, *tags.BAYES, *line, *bands, *tags.MONITOR)
    unknown = set() if successes is None else withheld(k, successes)
    return tuple(metric for metric in every if metric.tag not in unknown)


def withheld(k: int, successes: int) -> set[str]:
    """The tags of what a plan that stops at `successes` cannot tell, or would tell of too few samples to be compared.

    The KL-optimal line, the intervals and the band of pass@1 are of a fixed number of samples. Problems are not drawn
    until their other answers are found. Plug-in numbers depend on how many samples they are made of.
    """
    of_answers = (tags.DISTINCT_CORRECT, tags.UNSEEN_CORRECT, tags.ANSWER_ENTROPY, *map(tags.cover_at, TAUS))
    line = (*tags.LEASH, *map(tags.leash_pass_at, powers_of_two(k)))
    unknown = {metric.tag for metric in (*of_answers, *line, *tags.INTERVALS, *tags.PASS_AT_1_NOISE)}
    if successes < STABLE_HITS:
        names = [f"{name}_hits{STABLE_HITS}" for name in METRICS]
        unknown |= {getattr(level, name).tag for level in (tags.UNIT, tags.PROBLEM) for name in names}
        bands = [getattr(level, name) for level in (tags.UNIT_NOISE, tags.PROBLEM_NOISE) for name in names]
        unknown |= {metric.tag for band in bands for metric in band}
    return unknown


def pass_curve(metrics: Mapping[str, float], k: int) -> dict[int, float]:
    """pass@1, 2, 4, ... up to k of one step's metrics."""
    return {budget: metrics[tags.pass_at(budget).tag] for budget in powers_of_two(k)}


def leash_curve(metrics: Mapping[str, float], k: int) -> dict[int, float]:
    """The same of the reweighted base; {} if it was not measured."""
    found = {budget: metrics.get(tags.leash_pass_at(budget).tag, math.nan) for budget in powers_of_two(k)}
    return {} if all(map(math.isnan, found.values())) else found


def count_whole(pool: Pool) -> Tally:
    """What a comparison counts, read once. A pool that misses samples is an error: its support would be smaller."""
    counted = pool.tally()
    budget = int(pool.budget_p.sum())
    if absent := budget - int(counted.hits.n_p.sum()):
        raise PoolError(
            f"{pool.path} is incomplete: {absent:,} of its {budget:,} samples are missing. "
            "Was a part removed? Restore it; samples missing from a base pool are drawn again when a run starts"
        )
    return counted


def sample_metrics(counted: Tally, temperature: float) -> dict[str, float]:
    """Of one pool's model: pass@k and entropies (means over problems), lengths, failure rates, KL to the base.

    `temperature`: what the logits were divided by for the token entropies in the pool.
    """
    hits = counted.hits
    ks = powers_of_two(int(hits.n_p.min()))
    pass_k = pass_at_k(hits.correct_p, hits.n_p, ks).mean(axis=0)
    entropy_p, corrected_p = counted.answer_entropies()
    return {
        **{tags.pass_at(k).tag: float(value) for k, value in zip(ks, pass_k, strict=True)},
        **{tags.cover_at(tau).tag: mean_known(cover_at_tau(hits.correct_p, hits.n_p, tau)) for tau in TAUS},
        tags.ANSWER_ENTROPY.tag: mean_known(entropy_p),
        tags.ANSWER_ENTROPY_CORRECTED.tag: mean_known(corrected_p),
        tags.EFFECTIVE_ANSWERS.tag: mean_known(effective_answers(corrected_p)),
        tags.PCMD.tag: mean_known(counted.pcmd()),
        tags.token_entropy(temperature).tag: _mean(counted, "token_entropy"),
        tags.DISTINCT_CORRECT.tag: float(np.count_nonzero(hits.unit_hits) / len(hits.n_p)),
        tags.UNSEEN_CORRECT.tag: mean_known(counted.unseen()[1]),
        tags.RESPONSE_LENGTH.tag: _mean(counted, "tokens"),
        **status_rates(counted),
        tags.KL_TO_BASE.tag: _mean(counted, "kl_base_k1"),
    }


def support_metrics(base: Hits, policy: Hits) -> dict[str, float]:
    """Dynamics of units and of problems against the base, with what sampling noise alone would show."""
    if base.problem_ids != policy.problem_ids or base.unit_answer != policy.unit_answer:
        raise PoolError("the two pools hold different problems: their support cannot be compared")
    problems = np.arange(len(base.problem_ids))
    n_base_u, n_policy_u = base.n_p[base.unit_problem], policy.n_p[policy.unit_problem]
    bayes = expected_metrics(base.unit_hits, policy.unit_hits, n_base_u, n_policy_u, EPS)
    unit_noise = noise_test(base.unit_hits, policy.unit_hits, n_base_u, n_policy_u, base.unit_problem)
    problem_noise = noise_test(base.correct_p, policy.correct_p, base.n_p, policy.n_p, problems)
    return {
        **{getattr(tags.BAYES, name).tag: bayes[name] for name in tags.BAYES._fields},
        tags.DETECTION_LIMIT.tag: detection_limit(int(min(base.n_p.min(), policy.n_p.min()))),
        **level_metrics(tags.UNIT, base.unit_hits, policy.unit_hits, unit_noise),
        **level_metrics(tags.PROBLEM, base.correct_p, policy.correct_p, problem_noise),
        **leash_metrics(base, policy),
    }


def spelling_metrics(base: Spelled | None, policy: Spelled | None) -> dict[str, float]:
    """Dynamics of the ways in which correct answers are written; {} where a task does not tell them apart."""
    if base is None or policy is None:
        return {}
    base, policy = match_spellings(base, policy)
    of, hits = base.hits.unit_problem, (base.hits.unit_hits, policy.hits.unit_hits)
    table, noise = dynamics(*hits), noise_test(*hits, base.hits.n_p[of], policy.hits.n_p[of], of)
    level = tags.SPELLING
    counted = {getattr(level, name): float(getattr(table, name)) for name in ("preserved", "shrunk", "expanded")}
    rates = {getattr(level, name): getattr(table, name) for name in ("srr", "ndr", "nscr")}
    others = {
        # What noise alone would lose is not known: that needs a list of the spellings that nobody sampled.
        level.p_shrunk_strength: noise.shrunk.p_strength,
        level.p_expanded_strength: noise.expanded.p_strength,
        level.respelled: float(respelled(base, policy).sum()),
    }
    return {metric.tag: value for metric, value in (counted | rates | others).items()}


def leash_metrics(base: Hits, policy: Hits) -> dict[str, float]:
    """Units against the KL-optimal reweighting of the base at the policy's pass@1, and its pass@k."""
    ks = powers_of_two(int(min(base.n_p.min(), policy.n_p.min())))
    if not base.unit_hits.size:
        return {metric.tag: math.nan for metric in (*tags.LEASH, *map(tags.leash_pass_at, ks))}
    n_base_u, n_policy_u = base.n_p[base.unit_problem], policy.n_p[policy.unit_problem]
    hits = (base.unit_hits, policy.unit_hits, n_base_u, n_policy_u, base.unit_problem)
    _, found = pool_against_line(*hits, rng=np.random.default_rng(0), resamples=_RESAMPLES)
    problems, pass_at_1 = np.arange(len(base.n_p)), float(np.mean(policy.correct_p / policy.n_p))
    line = pool_line(base.correct_p, base.n_p, problems, pass_at_1, ks=ks)
    values = {
        tags.LEASH.nscr: found.line.value,
        tags.LEASH.above: found.above.value,
        tags.LEASH.above_low: found.above.low,
        tags.LEASH.above_high: found.above.high,
        tags.LEASH.policy_nscr_low: found.nscr.low,
        tags.LEASH.policy_nscr_high: found.nscr.high,
        tags.LEASH.log_weight: found.log_weight,
        **{tags.leash_pass_at(k): value for k, value in line.pass_at_k.items()},
    }
    return {metric.tag: value for metric, value in values.items()}


def verdict_of(metrics: Mapping[str, float]) -> Word | None:
    """The word for a measured step; None where nothing can be said, as of a run that did not measure the line."""

    def known(metric: Metric) -> float:
        return metrics.get(metric.tag, math.nan)

    line = tags.LEASH
    nscr = Estimate(known(tags.UNIT.nscr), known(line.policy_nscr_low), known(line.policy_nscr_high), 0)
    above = Estimate(known(line.above), known(line.above_low), known(line.above_high), 0)
    of_line = Estimate(known(line.nscr), math.nan, math.nan, 0)
    return verdict(AgainstLine(nscr, of_line, above, known(tags.UNIT.expanded), known(line.log_weight)))


def level_metrics(level: Level, base_hits: np.ndarray, policy_hits: np.ndarray, noise: NoiseTest) -> dict[str, float]:
    """Dynamics at one level, at one hit or more and at five or more, and what noise alone would show."""
    table, stable = dynamics(base_hits, policy_hits), dynamics(base_hits, policy_hits, threshold=STABLE_HITS)
    values = {
        **{getattr(level, name): float(getattr(table, name)) for name in (*CELLS, *METRICS)},
        **{getattr(level, f"{name}_hits{STABLE_HITS}"): getattr(stable, name) for name in METRICS},
        level.expected_shrunk: noise.shrunk.expected,
        level.expected_expanded: noise.expanded.expected,
        level.p_shrunk: noise.shrunk.p,
        level.p_expanded: noise.expanded.p,
        level.p_shrunk_strength: noise.shrunk.p_strength,
        level.p_expanded_strength: noise.expanded.p_strength,
        level.shrunk_sure: float(noise.shrunk.sure_u.sum()),
        level.expanded_sure: float(noise.expanded.sure_u.sum()),
    }
    return {metric.tag: value for metric, value in values.items()}


def noise_metrics(base: Hits, again_p: npt.ArrayLike, highest: int | None = None) -> dict[str, float]:
    """Of a second sample with `again_p` draws of each problem.

    `highest`: the hits at which the plan stops a problem, beyond which nothing is known; None for a fixed plan. What a
    second sample under such a plan shows as pass@1 is not known either.
    """
    again = np.broadcast_to(again_p, base.n_p.shape)
    of = base.unit_problem
    sides = (
        (tags.UNIT_NOISE, base.unit_hits, base.n_p[of], again[of], of),
        (tags.PROBLEM_NOISE, base.correct_p, base.n_p, again, np.arange(len(base.n_p))),
    )
    found: dict[str, float] = {}
    for level, hits, n, draws, problem in sides:
        found |= _bounds_of(level, noise_bands(hits, n, draws, problem_u=problem))
        at_five = dict.fromkeys(METRICS, _UNKNOWN)
        if highest is None or highest >= STABLE_HITS:
            at_five = noise_bands(hits, n, draws, STABLE_HITS, problem_u=problem)
        found |= _bounds_of(level, {f"{name}_hits{STABLE_HITS}": at_five[name] for name in METRICS})
    band = pass_at_1_band(base.correct_p, base.n_p, again) if highest is None else _UNKNOWN
    return found | _ends(tags.PASS_AT_1_NOISE, band)


def interval_metrics(base: Hits, policy: Hits) -> dict[str, float]:
    """Of a policy with a fixed number of samples, problems being drawn again."""
    rng = np.random.default_rng(0)
    cells_u4 = cells_of(base.unit_hits > 0, policy.unit_hits > 0)
    found = bootstrap_dynamics(cells_u4, base.unit_problem, rng=rng, resamples=_INTERVAL_RESAMPLES)
    found["pass_at_1"] = mean_interval(policy.correct_p / policy.n_p, rng=rng, resamples=_INTERVAL_RESAMPLES)
    return _bounds_of(tags.INTERVAL, {name: found[name] for name in tags.INTERVAL._fields})


def _bounds_of(bounds: Bands | Intervals, found: dict[str, Estimate]) -> dict[str, float]:
    return {tag: end for name, band in found.items() for tag, end in _ends(getattr(bounds, name), band).items()}


def _ends(bounds: Band | Bounds, band: Estimate) -> dict[str, float]:
    ends = {bounds.low.tag: band.low, bounds.high.tag: band.high}
    return {**ends, bounds.expected.tag: band.value} if isinstance(bounds, Band) else ends


def status_rates(counted: Tally) -> dict[str, float]:
    """Fractions of completions that were truncated, had no answer, timed out, or on which the verifier failed."""
    counts = dict(zip(STATUSES, counted.status_ps.sum(axis=0).tolist(), strict=True))
    total = sum(counts.values())
    return {
        tags.TRUNCATED.tag: counts["truncated"] / total,
        tags.NO_ANSWER.tag: math.nan if counted.unknown_p.any() else counts["no_answer"] / total,
        tags.TIMED_OUT.tag: counts["timeout"] / total,
        tags.FAILED.tag: counts["error"] / total,
    }


def mean_known(value_p: npt.ArrayLike) -> float:
    """Over the problems (or groups) where it is known; NaN if it never is."""
    values = np.asarray(value_p, dtype=np.float64)
    known = values[~np.isnan(values)]
    return float(known.mean()) if known.size else math.nan


def _mean(counted: Tally, value: str) -> float:
    """Over all samples where it is known; NaN if it never is."""
    column = VALUES.index(value)
    known = int(counted.known_pv[:, column].sum())
    return float(counted.sum_pv[:, column].sum()) / known if known else float("nan")
