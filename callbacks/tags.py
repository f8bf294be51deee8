"""Every tag that the callbacks write to TensorBoard, W&B or trackio: written out once, with what makes its value.

Search a tag you see in TensorBoard and you find its line here. The rest of the code refers to these constants. Tags
with a number in them are patterns (`pass_at_k/{k}`). What training itself logs is in `train/explorers/metrics.py`.
"""

from typing import NamedTuple


class Metric(NamedTuple):
    """One logged number (or figure, or text)."""

    tag: str
    unit: str
    meaning: str
    made_by: str
    """The function or property that computes it: a dotted path below `offleash`."""
    base: str = ""
    """The tag of the base model's value, "" if the metric has none."""

    @property
    def key(self) -> str:
        """What the trainer's own log calls it: the Trainer puts `train/` before it."""
        return self.tag.removeprefix("train/")

    def fill(self, **values: str) -> "Metric":
        """A pattern with values in its place-holders."""
        return self._replace(tag=self.tag.format(**values), base=self.base.format(**values))


class Level(NamedTuple):
    """Support dynamics against the base at one level: of units, or of problems. `_hits5`: at five hits or more."""

    preserved: Metric
    shrunk: Metric
    expanded: Metric
    out: Metric
    srr: Metric
    ndr: Metric
    sds: Metric
    nscr: Metric
    srr_hits5: Metric
    ndr_hits5: Metric
    sds_hits5: Metric
    nscr_hits5: Metric
    expected_shrunk: Metric
    expected_expanded: Metric
    p_shrunk: Metric
    p_expanded: Metric
    p_shrunk_strength: Metric
    p_expanded_strength: Metric
    shrunk_sure: Metric
    expanded_sure: Metric


class Spelling(NamedTuple):
    """Support of the ways in which correct answers are written, where a task tells spellings of one answer apart."""

    preserved: Metric
    shrunk: Metric
    expanded: Metric
    srr: Metric
    ndr: Metric
    nscr: Metric
    p_shrunk_strength: Metric
    p_expanded_strength: Metric
    respelled: Metric


class Band(NamedTuple):
    """What a second sample of the base would show: its expectation, and between which values it lies 19 times in 20."""

    low: Metric
    expected: Metric
    high: Metric


class Bands(NamedTuple):
    """Of the numbers of a `Level`."""

    shrunk: Band
    expanded: Band
    srr: Band
    ndr: Band
    sds: Band
    nscr: Band
    srr_hits5: Band
    ndr_hits5: Band
    sds_hits5: Band
    nscr_hits5: Band


class Bounds(NamedTuple):
    """The two ends of a band or of a 95 % interval."""

    low: Metric
    high: Metric


class Intervals(NamedTuple):
    """95 % intervals of the units' numbers. That of NSCR is in `Line`."""

    pass_at_1: Bounds
    shrunk: Bounds
    expanded: Bounds
    srr: Bounds
    ndr: Bounds


class Rare(NamedTuple):
    """Units above a probability of 1/1000, by an estimator that reaches below the detection limit."""

    srr: Metric
    ndr: Metric
    nscr: Metric


class Weighed(NamedTuple):
    """The same by importance weights, and how far they can be trusted."""

    srr: Metric
    ndr: Metric
    nscr: Metric
    effective_samples: Metric
    log_ratio_variance: Metric
    withheld: Metric


class Line(NamedTuple):
    """The leash line, and the policy's NSCR beside it. `low` and `high` are 95 % intervals."""

    nscr: Metric
    above: Metric
    above_low: Metric
    above_high: Metric
    policy_nscr_low: Metric
    policy_nscr_high: Metric
    log_weight: Metric


_SAMPLE, _GROUPS = "callbacks.metrics.sample_metrics", "callbacks.rollouts.group_metrics"
_STATUS = "callbacks.metrics.status_rates"
_MEASURE = "callbacks.support.SupportCallback.measure"

UNIT = Level(
    Metric("support/unit/preserved", "units", "units reached by base and policy", "eval.stats.support.dynamics"),
    Metric("support/unit/shrunk", "units", "reached by the base only: lost", "eval.stats.support.dynamics"),
    Metric("support/unit/expanded", "units", "reached by the policy only: gained", "eval.stats.support.dynamics"),
    Metric("support/unit/out", "units", "reached by neither", "eval.stats.support.dynamics"),
    Metric("support/unit/srr", "fraction", "fraction of base units retained", "eval.stats.support.Dynamics.srr"),
    Metric("support/unit/ndr", "fraction", "fraction of policy units that are new", "eval.stats.support.Dynamics.ndr"),
    Metric("support/unit/sds", "fraction", "harmonic mean of SRR and NDR", "eval.stats.support.Dynamics.sds"),
    Metric("support/unit/nscr", "ratio", "(gained - lost) / union", "eval.stats.support.Dynamics.nscr"),
    Metric("support/unit/srr_hits5", "fraction", "SRR at 5 hits or more", "eval.stats.support.Dynamics.srr"),
    Metric("support/unit/ndr_hits5", "fraction", "NDR at 5 hits or more", "eval.stats.support.Dynamics.ndr"),
    Metric("support/unit/sds_hits5", "fraction", "SDS at 5 hits or more", "eval.stats.support.Dynamics.sds"),
    Metric("support/unit/nscr_hits5", "ratio", "NSCR at 5 hits or more", "eval.stats.support.Dynamics.nscr"),
    Metric("support/unit/expected_shrunk", "units", "lost by noise alone", "eval.stats.noise.noise_test"),
    Metric("support/unit/expected_expanded", "units", "gained by noise alone", "eval.stats.noise.noise_test"),
    Metric("support/unit/p_shrunk", "p-value", "of the count, if nothing changed", "eval.stats.noise.noise_test"),
    Metric("support/unit/p_expanded", "p-value", "of the count, if nothing changed", "eval.stats.noise.noise_test"),
    Metric("support/unit/p_shrunk_strength", "p-value", "of how firmly held", "eval.stats.noise.noise_test"),
    Metric("support/unit/p_expanded_strength", "p-value", "of how firmly gained", "eval.stats.noise.noise_test"),
    Metric("support/unit/shrunk_sure", "units", "lost beyond chance (Holm)", "eval.stats.noise.noise_test"),
    Metric("support/unit/expanded_sure", "units", "gained beyond chance (Holm)", "eval.stats.noise.noise_test"),
)
PROBLEM = Level(
    Metric("support/problem/preserved", "problems", "solved by base and policy", "eval.stats.support.dynamics"),
    Metric("support/problem/shrunk", "problems", "solved by the base only: lost", "eval.stats.support.dynamics"),
    Metric("support/problem/expanded", "problems", "solved by the policy only: gained", "eval.stats.support.dynamics"),
    Metric("support/problem/out", "problems", "solved by neither", "eval.stats.support.dynamics"),
    Metric("support/problem/srr", "fraction", "fraction of base problems retained", "eval.stats.support.Dynamics.srr"),
    Metric("support/problem/ndr", "fraction", "fraction of policy problems new", "eval.stats.support.Dynamics.ndr"),
    Metric("support/problem/sds", "fraction", "harmonic mean of SRR and NDR", "eval.stats.support.Dynamics.sds"),
    Metric("support/problem/nscr", "ratio", "(gained - lost) / union", "eval.stats.support.Dynamics.nscr"),
    Metric("support/problem/srr_hits5", "fraction", "SRR at 5 hits or more", "eval.stats.support.Dynamics.srr"),
    Metric("support/problem/ndr_hits5", "fraction", "NDR at 5 hits or more", "eval.stats.support.Dynamics.ndr"),
    Metric("support/problem/sds_hits5", "fraction", "SDS at 5 hits or more", "eval.stats.support.Dynamics.sds"),
    Metric("support/problem/nscr_hits5", "ratio", "NSCR at 5 hits or more", "eval.stats.support.Dynamics.nscr"),
    Metric("support/problem/expected_shrunk", "problems", "lost by noise alone", "eval.stats.noise.noise_test"),
    Metric("support/problem/expected_expanded", "problems", "gained by noise alone", "eval.stats.noise.noise_test"),
    Metric("support/problem/p_shrunk", "p-value", "of the count, if nothing changed", "eval.stats.noise.noise_test"),
    Metric("support/problem/p_expanded", "p-value", "of the count, if nothing changed", "eval.stats.noise.noise_test"),
    Metric("support/problem/p_shrunk_strength", "p-value", "of how firmly held", "eval.stats.noise.noise_test"),
    Metric("support/problem/p_expanded_strength", "p-value", "of how firmly gained", "eval.stats.noise.noise_test"),
    Metric("support/problem/shrunk_sure", "problems", "lost beyond chance (Holm)", "eval.stats.noise.noise_test"),
    Metric("support/problem/expanded_sure", "problems", "gained beyond chance (Holm)", "eval.stats.noise.noise_test"),
)
_BANDS = "eval.stats.bands.noise_bands"
UNIT_NOISE = Bands(
    Band(
        Metric("noise/unit/shrunk_low", "units", "lower end of the noise in units lost", _BANDS),
        UNIT.expected_shrunk,
        Metric("noise/unit/shrunk_high", "units", "upper end of the noise in units lost", _BANDS),
    ),
    Band(
        Metric("noise/unit/expanded_low", "units", "lower end of the noise in units gained", _BANDS),
        UNIT.expected_expanded,
        Metric("noise/unit/expanded_high", "units", "upper end of the noise in units gained", _BANDS),
    ),
    Band(
        Metric("noise/unit/srr_low", "fraction", "lower end of the noise in SRR", _BANDS),
        Metric("noise/unit/srr", "fraction", "SRR that noise alone would show", _BANDS),
        Metric("noise/unit/srr_high", "fraction", "upper end of the noise in SRR", _BANDS),
    ),
    Band(
        Metric("noise/unit/ndr_low", "fraction", "lower end of the noise in NDR", _BANDS),
        Metric("noise/unit/ndr", "fraction", "NDR that noise alone would show", _BANDS),
        Metric("noise/unit/ndr_high", "fraction", "upper end of the noise in NDR", _BANDS),
    ),
    Band(
        Metric("noise/unit/sds_low", "fraction", "lower end of the noise in SDS", _BANDS),
        Metric("noise/unit/sds", "fraction", "SDS that noise alone would show", _BANDS),
        Metric("noise/unit/sds_high", "fraction", "upper end of the noise in SDS", _BANDS),
    ),
    Band(
        Metric("noise/unit/nscr_low", "ratio", "lower end of the noise in NSCR", _BANDS),
        Metric("noise/unit/nscr", "ratio", "NSCR that noise alone would show", _BANDS),
        Metric("noise/unit/nscr_high", "ratio", "upper end of the noise in NSCR", _BANDS),
    ),
    Band(
        Metric("noise/unit/srr_hits5_low", "fraction", "lower end of the noise in SRR at 5 hits or more", _BANDS),
        Metric("noise/unit/srr_hits5", "fraction", "SRR at 5 hits or more that noise alone would show", _BANDS),
        Metric("noise/unit/srr_hits5_high", "fraction", "upper end of the noise in SRR at 5 hits or more", _BANDS),
    ),
    Band(
        Metric("noise/unit/ndr_hits5_low", "fraction", "lower end of the noise in NDR at 5 hits or more", _BANDS),
        Metric("noise/unit/ndr_hits5", "fraction", "NDR at 5 hits or more that noise alone would show", _BANDS),
        Metric("noise/unit/ndr_hits5_high", "fraction", "upper end of the noise in NDR at 5 hits or more", _BANDS),
    ),
    Band(
        Metric("noise/unit/sds_hits5_low", "fraction", "lower end of the noise in SDS at 5 hits or more", _BANDS),
        Metric("noise/unit/sds_hits5", "fraction", "SDS at 5 hits or more that noise alone would show", _BANDS),
        Metric("noise/unit/sds_hits5_high", "fraction", "upper end of the noise in SDS at 5 hits or more", _BANDS),
    ),
    Band(
        Metric("noise/unit/nscr_hits5_low", "ratio", "lower end of the noise in NSCR at 5 hits or more", _BANDS),
        Metric("noise/unit/nscr_hits5", "ratio", "NSCR at 5 hits or more that noise alone would show", _BANDS),
        Metric("noise/unit/nscr_hits5_high", "ratio", "upper end of the noise in NSCR at 5 hits or more", _BANDS),
    ),
)
PROBLEM_NOISE = Bands(
    Band(
        Metric("noise/problem/shrunk_low", "problems", "lower end of the noise in problems lost", _BANDS),
        PROBLEM.expected_shrunk,
        Metric("noise/problem/shrunk_high", "problems", "upper end of the noise in problems lost", _BANDS),
    ),
    Band(
        Metric("noise/problem/expanded_low", "problems", "lower end of the noise in problems gained", _BANDS),
        PROBLEM.expected_expanded,
        Metric("noise/problem/expanded_high", "problems", "upper end of the noise in problems gained", _BANDS),
    ),
    Band(
        Metric("noise/problem/srr_low", "fraction", "lower end of the noise in SRR", _BANDS),
        Metric("noise/problem/srr", "fraction", "SRR that noise alone would show", _BANDS),
        Metric("noise/problem/srr_high", "fraction", "upper end of the noise in SRR", _BANDS),
    ),
    Band(
        Metric("noise/problem/ndr_low", "fraction", "lower end of the noise in NDR", _BANDS),
        Metric("noise/problem/ndr", "fraction", "NDR that noise alone would show", _BANDS),
        Metric("noise/problem/ndr_high", "fraction", "upper end of the noise in NDR", _BANDS),
    ),
    Band(
        Metric("noise/problem/sds_low", "fraction", "lower end of the noise in SDS", _BANDS),
        Metric("noise/problem/sds", "fraction", "SDS that noise alone would show", _BANDS),
        Metric("noise/problem/sds_high", "fraction", "upper end of the noise in SDS", _BANDS),
    ),
    Band(
        Metric("noise/problem/nscr_low", "ratio", "lower end of the noise in NSCR", _BANDS),
        Metric("noise/problem/nscr", "ratio", "NSCR that noise alone would show", _BANDS),
        Metric("noise/problem/nscr_high", "ratio", "upper end of the noise in NSCR", _BANDS),
    ),
    Band(
        Metric("noise/problem/srr_hits5_low", "fraction", "lower end of the noise in SRR at 5 hits or more", _BANDS),
        Metric("noise/problem/srr_hits5", "fraction", "SRR at 5 hits or more that noise alone would show", _BANDS),
        Metric("noise/problem/srr_hits5_high", "fraction", "upper end of the noise in SRR at 5 hits or more", _BANDS),
    ),
    Band(
        Metric("noise/problem/ndr_hits5_low", "fraction", "lower end of the noise in NDR at 5 hits or more", _BANDS),
        Metric("noise/problem/ndr_hits5", "fraction", "NDR at 5 hits or more that noise alone would show", _BANDS),
        Metric("noise/problem/ndr_hits5_high", "fraction", "upper end of the noise in NDR at 5 hits or more", _BANDS),
    ),
    Band(
        Metric("noise/problem/sds_hits5_low", "fraction", "lower end of the noise in SDS at 5 hits or more", _BANDS),
        Metric("noise/problem/sds_hits5", "fraction", "SDS at 5 hits or more that noise alone would show", _BANDS),
        Metric("noise/problem/sds_hits5_high", "fraction", "upper end of the noise in SDS at 5 hits or more", _BANDS),
    ),
    Band(
        Metric("noise/problem/nscr_hits5_low", "ratio", "lower end of the noise in NSCR at 5 hits or more", _BANDS),
        Metric("noise/problem/nscr_hits5", "ratio", "NSCR at 5 hits or more that noise alone would show", _BANDS),
        Metric("noise/problem/nscr_hits5_high", "ratio", "upper end of the noise in NSCR at 5 hits or more", _BANDS),
    ),
)
_PASS_BAND = "eval.stats.bands.pass_at_1_band"
PASS_AT_1_NOISE = Bounds(
    Metric("noise/pass_at_1_low", "probability", "lower end of the noise in pass@1 of the base", _PASS_BAND),
    Metric("noise/pass_at_1_high", "probability", "upper end of the noise in pass@1 of the base", _PASS_BAND),
)
_MEAN, _RESAMPLED = "eval.stats.curves.mean_interval", "eval.stats.support.bootstrap_dynamics"
INTERVAL = Intervals(
    Bounds(
        Metric("interval/pass_at_1_low", "probability", "lower end of the 95 % interval of pass@1", _MEAN),
        Metric("interval/pass_at_1_high", "probability", "upper end of the 95 % interval of pass@1", _MEAN),
    ),
    Bounds(
        Metric("interval/unit/shrunk_low", "units", "lower end of the 95 % interval of units lost", _RESAMPLED),
        Metric("interval/unit/shrunk_high", "units", "upper end of the 95 % interval of units lost", _RESAMPLED),
    ),
    Bounds(
        Metric("interval/unit/expanded_low", "units", "lower end of the 95 % interval of units gained", _RESAMPLED),
        Metric("interval/unit/expanded_high", "units", "upper end of the 95 % interval of units gained", _RESAMPLED),
    ),
    Bounds(
        Metric("interval/unit/srr_low", "fraction", "lower end of the 95 % interval of SRR of units", _RESAMPLED),
        Metric("interval/unit/srr_high", "fraction", "upper end of the 95 % interval of SRR of units", _RESAMPLED),
    ),
    Bounds(
        Metric("interval/unit/ndr_low", "fraction", "lower end of the 95 % interval of NDR of units", _RESAMPLED),
        Metric("interval/unit/ndr_high", "fraction", "upper end of the 95 % interval of NDR of units", _RESAMPLED),
    ),
)
_RESPELLED = "eval.pool.spellings.respelled"
SPELLING = Spelling(
    Metric("support/spelling/preserved", "spellings", "written by base and policy", "eval.stats.support.dynamics"),
    Metric("support/spelling/shrunk", "spellings", "written by the base only: lost", "eval.stats.support.dynamics"),
    Metric("support/spelling/expanded", "spellings", "by the policy only: gained", "eval.stats.support.dynamics"),
    Metric("support/spelling/srr", "fraction", "fraction of base spellings kept", "eval.stats.support.Dynamics.srr"),
    Metric("support/spelling/ndr", "fraction", "fraction of policy spellings new", "eval.stats.support.Dynamics.ndr"),
    Metric("support/spelling/nscr", "ratio", "(gained - lost) / union", "eval.stats.support.Dynamics.nscr"),
    Metric("support/spelling/p_shrunk_strength", "p-value", "of how firmly held", "eval.stats.noise.noise_test"),
    Metric("support/spelling/p_expanded_strength", "p-value", "of how firmly gained", "eval.stats.noise.noise_test"),
    Metric("support/spelling/respelled", "spellings", "lost, of an answer the policy still reaches", _RESPELLED),
)
"""Logged where the task tells spellings of one answer apart."""
DETECTION_LIMIT = Metric(
    "support/detection_limit",
    "probability",
    "largest probability of a unit that was missed in all k samples (95 % confidence); logged once",
    "eval.stats.support.detection_limit",
)
DISTINCT_CORRECT = Metric(
    "support/distinct_correct",
    "answers",
    "distinct correct answers reached per problem",
    _SAMPLE,
    base="support/base/distinct_correct",
)
UNSEEN_CORRECT = Metric(
    "support/unseen_correct",
    "probability",
    "probability that one more sample gives a correct answer not seen before (Good-Turing), mean over problems",
    "eval.stats.unseen.unseen_mass",
    base="support/base/unseen_correct",
)
BAYES = Rare(
    Metric(
        "support/bayes/srr", "fraction", "SRR above 1/1000 by fitted rates", "eval.stats.posterior.expected_metrics"
    ),
    Metric(
        "support/bayes/ndr", "fraction", "NDR above 1/1000 by fitted rates", "eval.stats.posterior.expected_metrics"
    ),
    Metric("support/bayes/nscr", "ratio", "NSCR above 1/1000 by fitted rates", "eval.stats.posterior.expected_metrics"),
)
_WEIGHED = "callbacks.importance.ImportanceWeights.measure"
IMPORTANCE = Weighed(
    Metric("support/importance/srr", "fraction", "SRR above 1/1000 by importance weights", _WEIGHED),
    Metric("support/importance/ndr", "fraction", "NDR above 1/1000 by importance weights", _WEIGHED),
    Metric("support/importance/nscr", "ratio", "NSCR above 1/1000 by importance weights", _WEIGHED),
    Metric("support/importance/effective_samples", "samples", "samples per problem that the weights leave", _WEIGHED),
    Metric("support/importance/log_ratio_variance", "nats^2", "of ln policy/base over the base's draws", _WEIGHED),
    Metric("support/importance/withheld", "0 or 1", "1: variance of 4 or more, or tokens not recovered", _WEIGHED),
)
MOVES_FIGURE = Metric(
    "support/lost_and_gained_by_step",
    "figure",
    "units lost and gained over the steps, in their bands of noise",
    "callbacks.charts.moves_figure",
)
LOST_AND_GAINED = Metric(
    "support/lost_and_gained", "text", "table of units lost and gained", "callbacks.trackers.lost_and_gained_table"
)

_LINE = "of the KL-optimal reweighting of the base at this pass@1"
_AGAINST = "eval.stats.leash.pools.pool_against_line"
LEASH = Line(
    Metric("support/leash/nscr", "ratio", f"NSCR {_LINE}, estimated; units", _AGAINST),
    Metric("support/leash/above", "ratio", f"NSCR of the policy less that {_LINE}", _AGAINST),
    Metric("support/leash/above_low", "ratio", "its lower bound: above 0, support expands", _AGAINST),
    Metric("support/leash/above_high", "ratio", "its upper bound", _AGAINST),
    Metric("support/leash/policy_nscr_low", "ratio", "lower bound of support/unit/nscr", _AGAINST),
    Metric("support/leash/policy_nscr_high", "ratio", "its upper bound: below 0, support shrinks", _AGAINST),
    Metric("support/leash/log_weight", "nats", "1/beta of that reweighting; 0 is the base", _AGAINST),
)
LEASH_PASS_AT_K = Metric(
    "support/leash/pass_at_{k}", "probability", f"pass@k {_LINE}, estimated", "eval.stats.leash.pools.pool_line"
)

_EXACT = "callbacks.exact.exact_metrics"
EXACT_PASS_AT_1 = Metric("exact/pass_at_1", "probability", "pass@1 by enumeration of all correct answers", _EXACT)
EXACT_NSCR = Metric(
    "exact/nscr_{eps}",
    "ratio",
    "(gained - lost) / union of units of probability eps or more, by enumeration; eps = 1e-1, ..., 1e-6",
    "eval.stats.exact_support.exact_dynamics",
)
EXACT_ENTROPY = Metric(
    "exact/entropy",
    "nats",
    "entropy of the answer given that it is correct, by enumeration; mean over problems",
    "eval.stats.exact_support.conditional_entropy",
)
LEASH_NSCR = Metric("exact/leash/nscr_{eps}", "ratio", f"NSCR {_LINE}", "eval.stats.leash.tilt.leash_line")
LEASH_ENTROPY = Metric("exact/leash/entropy", "nats", f"entropy {_LINE}", "eval.stats.leash.tilt.leash_line")
_WHERE = "eval.scoring.positions.where_lost"
EXACT_LOST = Metric("exact/lost", "units", "of base probability 1e-3 or more, below it under the policy", _WHERE)
LOST_AT_FIRST_TOKEN = Metric(
    "exact/lost_at_first_token", "share", "of the lost units' shift of log-probability: at the first token", _WHERE
)
LOST_AT_BRANCHING = Metric(
    "exact/lost_at_branching",
    "share",
    "of the lost units' shift of log-probability: later, where texts of different correct answers part",
    _WHERE,
)
STILL_EXECUTABLE = Metric(
    "exact/still_executable",
    "probability",
    "that the policy completes a lost answer, its text forced up to and including its first branching point",
    _WHERE,
)
STILL_EXECUTABLE_BASE = Metric(
    "exact/still_executable_base", "probability", "the same for the base, of the same answers", _WHERE
)

PASS_AT_K = Metric(
    "pass_at_k/{k}",
    "probability",
    "unbiased pass@k, mean over problems; k = 1, 2, 4, ...",
    "eval.stats.passk.pass_at_k",
    base="pass_at_k/base/{k}",
)
PASS_AT_K_FIGURE = Metric(
    "pass_at_k/base_and_policy",
    "figure",
    "pass@k of base, policy and reweighted base",
    "callbacks.charts.pass_at_k_figure",
)

ANSWER_ENTROPY = Metric(
    "entropy/answer",
    "nats",
    "entropy over a problem's answers (plug-in), mean over problems",
    "eval.stats.entropy.answer_entropy",
    base="entropy/base/answer",
)
ANSWER_ENTROPY_CORRECTED = Metric(
    "entropy/answer_corrected",
    "nats",
    "answer entropy, corrected for the bias of few samples (Chao-Wang-Jost)",
    "eval.stats.entropy.answer_entropy_corrected",
    base="entropy/base/answer_corrected",
)
EFFECTIVE_ANSWERS = Metric(
    "entropy/effective_answers",
    "answers",
    "exp of the corrected answer entropy, mean over problems: as many equally likely answers have the same entropy",
    "eval.stats.diversity.effective_answers",
    base="entropy/base/effective_answers",
)
PCMD = Metric(
    "entropy/pcmd",
    "probability",
    "two correct samples differ (unbiased), mean over problems with two correct samples or more",
    "eval.stats.diversity.pcmd",
    base="entropy/base/pcmd",
)
COVER_AT_TAU = Metric(
    "cover_at_tau/{tau}",
    "fraction",
    "problems with a success rate of at least tau (plug-in); tau = 0.2, 0.8",
    "eval.stats.passk.cover_at_tau",
    base="cover_at_tau/base/{tau}",
)
TOKEN_ENTROPY = Metric(
    "entropy/token_T{temperature}",
    "nats",
    "mean token entropy with logits divided by the temperature",
    _SAMPLE,
    base="entropy/base/token_T{temperature}",
)

RESPONSE_LENGTH = Metric(
    "verify/response_length", "tokens", "mean completion length", _SAMPLE, base="verify/base/response_length"
)
TRUNCATED = Metric(
    "verify/truncated", "fraction", "completions cut off at the length limit", _STATUS, base="verify/base/truncated"
)
NO_ANSWER = Metric(
    "verify/no_answer", "fraction", "completions without an answer", _STATUS, base="verify/base/no_answer"
)
TIMED_OUT = Metric(
    "verify/timed_out",
    "fraction",
    "completions that used up the verifier's time or memory, which is wrong",
    _STATUS,
    base="verify/base/timed_out",
)
FAILED = Metric(
    "verify/failed", "fraction", "completions on which the verifier failed", _STATUS, base="verify/base/failed"
)

_KL = "KL to the base (k1 estimator); only if the monitor samples as training does, untruncated"
KL_TO_BASE = Metric("monitor/kl_base_k1", "nats per completion", _KL, _SAMPLE)
SAMPLES = Metric(
    "monitor/samples", "samples", "samples that this measurement is made of", "callbacks.counted.step_metrics"
)
SECONDS = Metric("monitor/seconds", "seconds", "time that this measurement took", _MEASURE)
SECONDS_TOTAL = Metric("monitor/seconds_total", "seconds", "time spent measuring so far", _MEASURE)
MONITOR_FAILED = Metric(
    "monitor/failed",
    "observations",
    "measurements and reports that failed since the run was started or resumed",
    "callbacks.observer.Observer.attempt",
)
SERVED_DIFFERENCE = Metric(
    "monitor/served_logp_difference",
    "nats per token",
    "mean absolute difference of log-probabilities between vLLM and the trainer: rounding, or a failed weight sync",
    "callbacks.weight_sync.Scores.difference",
)

ROLLOUT_ENTROPY = Metric("rollouts/answer_entropy", "nats", "entropy over a training group's answers", _GROUPS)
ROLLOUT_ANSWERS = Metric("rollouts/distinct_answers", "answers", "distinct answers per training group", _GROUPS)
ROLLOUT_CORRECT = Metric("rollouts/distinct_correct", "answers", "distinct correct answers per group", _GROUPS)
ALL_CORRECT = Metric("rollouts/all_correct", "fraction", "groups without a wrong rollout: no gradient", _GROUPS)
ALL_WRONG = Metric("rollouts/all_wrong", "fraction", "groups without a correct rollout: no gradient", _GROUPS)

SAMPLED = (
    *(ANSWER_ENTROPY, ANSWER_ENTROPY_CORRECTED, EFFECTIVE_ANSWERS, PCMD, DISTINCT_CORRECT, UNSEEN_CORRECT),
    *(RESPONSE_LENGTH, TRUNCATED, NO_ANSWER, TIMED_OUT, FAILED, KL_TO_BASE),
)
"""What one pool gives besides pass@k and token entropy."""
EXACT = (
    *(EXACT_PASS_AT_1, EXACT_NSCR, EXACT_ENTROPY, LEASH_NSCR, LEASH_ENTROPY),
    *(EXACT_LOST, LOST_AT_FIRST_TOKEN, LOST_AT_BRANCHING, STILL_EXECUTABLE, STILL_EXECUTABLE_BASE),
)
"""What `SupportCallback(exact=True)` adds."""
MONITOR = (SAMPLES, SECONDS, SECONDS_TOTAL, MONITOR_FAILED)
"""About a measurement itself."""
ONCE = (DETECTION_LIMIT,)
"""Constants of a run: logged at the first measured step only."""
NOISE = tuple(
    metric
    for band in (*UNIT_NOISE, *PROBLEM_NOISE, PASS_AT_1_NOISE)
    for metric in band
    if metric not in (*UNIT, *PROBLEM)  # the expected counts are among these
)
"""Constants of the base, logged at every step: TensorBoard draws a band where both ends have the value's steps."""
INTERVALS = tuple(metric for bounds in INTERVAL for metric in bounds)
METRICS: tuple[Metric, ...] = (
    *(*UNIT, *PROBLEM, *SPELLING, *LEASH, LEASH_PASS_AT_K, *NOISE, *INTERVALS),
    *(DETECTION_LIMIT, DISTINCT_CORRECT, UNSEEN_CORRECT, *BAYES, *IMPORTANCE, MOVES_FIGURE, LOST_AND_GAINED, *EXACT),
    *(PASS_AT_K, PASS_AT_K_FIGURE, COVER_AT_TAU),
    *(ANSWER_ENTROPY, ANSWER_ENTROPY_CORRECTED, EFFECTIVE_ANSWERS, PCMD, TOKEN_ENTROPY),
    *(RESPONSE_LENGTH, TRUNCATED, NO_ANSWER, TIMED_OUT, FAILED),
    *(KL_TO_BASE, SAMPLES, SECONDS, SECONDS_TOTAL, MONITOR_FAILED, SERVED_DIFFERENCE),
    *(ROLLOUT_ENTROPY, ROLLOUT_ANSWERS, ROLLOUT_CORRECT, ALL_CORRECT, ALL_WRONG),
)


def pass_at(k: int) -> Metric:
    """`pass_at_k/8` for k = 8."""
    return PASS_AT_K.fill(k=str(k))


def leash_pass_at(k: int) -> Metric:
    """`support/leash/pass_at_8` for k = 8."""
    return LEASH_PASS_AT_K.fill(k=str(k))


def at_floor(metric: Metric, eps: float) -> Metric:
    """`exact/nscr_1e-3` for EXACT_NSCR and a power of ten."""
    return metric.fill(eps=f"{eps:.0e}".replace("e-0", "e-"))


def cover_at(tau: float) -> Metric:
    """`cover_at_tau/0.8` for tau 0.8."""
    return COVER_AT_TAU.fill(tau=f"{tau:g}")


def token_entropy(temperature: float) -> Metric:
    """`entropy/token_T0.7` for temperature 0.7."""
    return TOKEN_ENTROPY.fill(temperature=f"{temperature:g}")
