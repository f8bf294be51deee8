"""Every tag that training itself adds to TRL's: the second part of the table in `callbacks/tags.py`.

TRL logs these with its own metrics, and the Trainer puts `train/` before their key. An explorer's `metrics()` gives the
last part of the tag, so an explorer of your own can log whatever it likes.
"""

from offleash.callbacks.tags import Metric

_EXPLORED = "train.exploring.Exploring._explored"
_TOKENS = "train.exploring.Exploring._shape_token_advantages"
_SHAPED = "train.exploring.Exploring._shaped_rewards"
_ON_POLICY = "train.exploring.Exploring._log_on_policy_reward"
_LOSS = "train.exploring.Exploring._compute_loss"
_CLIP_COV = "train.explorers.loss.covariance.ClipCov.metrics"
_SAGE = "train.explorers.loss.sage.Sage.metrics"
_TILT = "train.explorers.advantages.tilt.Tilt.metrics"
_REPLAY = "train.explorers.samples.mode_replay.ModeReplay.metrics"
_DYNAMIC = "train.explorers.samples.dynamic_sampling.DynamicSampling.metrics"
_UCB = "train.explorers.advantages.outcome_ucb.OutcomeUcb.metrics"
_RESET = "train.explorers.loss.reference_reset.ReferenceReset.metrics"
_SEEDING = "train.explorers.samples.seeding.Seeding.metrics"
_VERIFIER = "train.rewards.VerifierReward"
_SWEEP = "train.variants.results.read_run"

ADVANTAGE_MEAN = Metric(
    "train/explorer/advantage_change_mean", "advantage", "mean change of the advantages by the explorers", _EXPLORED
)
ADVANTAGE_ABS = Metric(
    "train/explorer/advantage_change_abs", "advantage", "mean absolute change of the advantages", _EXPLORED
)
TOKEN_ADVANTAGE_ABS = Metric(
    "train/explorer/token_advantage_change_abs", "advantage", "mean absolute change of token advantages", _TOKENS
)
REWARD_SHAPED = Metric("train/explorer/reward_shaped", "reward", "mean reward after shaping", _SHAPED)
REWARD_WITH_TRACES = Metric(
    "train/explorer/reward_with_traces", "reward", "mean reward with off-policy traces included", _ON_POLICY
)
EXTRA_LOSS = Metric("train/explorer/extra_loss", "loss", "sum of the explorers' extra losses", _LOSS)
ROLLOUTS = Metric("train/explorer/rollouts", "rollouts", "dynamic_sampling: rollouts drawn so far", _DYNAMIC)
OWN = Metric("train/explorer/{name}", "any", "what your own explorer's metrics() gives", "train.Explorer.metrics")
VERIFIER_FAILED = Metric("train/verify/failed", "fraction", "training rollouts on which the verifier failed", _VERIFIER)
TIMED_OUT = Metric(
    "train/verify/timed_out", "fraction", "training rollouts that used up the verifier's time or memory", _VERIFIER
)
VARIANT = Metric(
    "variants/{metric}", "any", "HParams page of a sweep: the metrics of each run, by the sweep's keys", _SWEEP
)

TOTALS = ("rollouts", "answers_seen", "modes_banked", "resets")
"""Of the names in `OWN`, those that grow through a run: their last value is logged, not the mean since the last log."""

METRICS: tuple[Metric, ...] = (
    *(ADVANTAGE_MEAN, ADVANTAGE_ABS, TOKEN_ADVANTAGE_ABS, REWARD_SHAPED, REWARD_WITH_TRACES, EXTRA_LOSS),
    Metric("train/explorer/tokens_left_out", "tokens", "clip_cov: tokens masked in a step, of all ranks", _CLIP_COV),
    Metric("train/explorer/batches", "batches", "dynamic_sampling: batches drawn for this step", _DYNAMIC),
    ROLLOUTS,
    Metric("train/explorer/filled", "fraction", "dynamic_sampling: groups with a reward signal", _DYNAMIC),
    Metric("train/explorer/answers_seen", "answers", "outcome_ucb: distinct answers counted so far", _UCB),
    Metric("train/explorer/guide", "factor", "sage: mean factor of the reference's probability", _SAGE),
    Metric("train/explorer/log_ratio", "nats", "tilt: mean log-ratio of policy to base of a rollout: the KL", _TILT),
    Metric("train/explorer/modes_banked", "answers", "mode_replay: answer classes in the bank", _REPLAY),
    Metric("train/explorer/resets", "resets", "reference_reset: resets so far", _RESET),
    Metric("train/explorer/stalled", "batches", "reference_reset: batches without a better reward", _RESET),
    Metric("train/explorer/off_policy", "fraction", "seeding: rollouts that are off-policy traces", _SEEDING),
    *(OWN, VERIFIER_FAILED, TIMED_OUT, VARIANT),
)
