"""What a comparison of pools says, as plain data: made by `comparison.compare`, shown by `offleash.eval.report`.

Every number is an `Estimate` (value, interval, count of problems) or comes with the counts behind it. What is undefined
is NaN. Nothing here is escaped or rounded: text of models and problems is untrusted, and exactly as it was stored.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from offleash.eval.comparison.changes import Change
from offleash.eval.pool.pool import Pool
from offleash.eval.pool.spec import PoolSpec
from offleash.eval.stats.curves import Lead
from offleash.eval.stats.intervals import Estimate
from offleash.eval.stats.leash.against import AgainstLine
from offleash.eval.stats.leash.verdict import Word
from offleash.eval.stats.support import Dynamics, expected_metrics

CurvesState = Literal["crosses", "base_ahead", "policy_ahead", "undecided", "equal"]


@dataclass(frozen=True, slots=True)
class SideInfo:
    """One side: a model, and what was drawn from it."""

    label: str
    series: str
    """The folder that holds its pools and their like: of a training run the name of the run."""
    model: str
    revision: str
    step: int | None
    tasks: tuple[str, ...]
    problems: int
    draws: int
    """Samples held, over all its pools."""
    temperature: float
    top_p: float
    max_new_tokens: int
    engine: str
    specs: tuple[PoolSpec, ...]
    """Of its pools, in the order of `tasks`."""


@dataclass(frozen=True, slots=True)
class Noise:
    """A count beside what sampling alone would show if nothing had changed: see `offleash.eval.stats.noise.Excess`."""

    expected: float
    excess: float
    p: float
    """Of the count."""
    p_strength: float
    """Of how firmly the units that moved were held."""
    sure_units: tuple[int, ...]
    """Units of the scope whose move chance does not explain one by one (Holm, 5 %; of all samples)."""

    @property
    def sure(self) -> int:
        return len(self.sure_units)


@dataclass(frozen=True, slots=True)
class Support:
    """The 2x2 at one threshold of hits: estimates of `support.CELLS` and `support.METRICS`, and the noise in it."""

    threshold: int
    estimates: Mapping[str, Estimate]
    shrunk: Noise
    expanded: Noise
    detection_limit: float
    """The largest probability that a unit outside the support may still have (95 %, one-sided)."""

    @property
    def noise_metrics(self) -> dict[str, float]:
        """`support.METRICS` of a second sample of the base, as expected; NaN where that is not known."""
        reached = self.estimates["preserved"].value + self.estimates["shrunk"].value
        return expected_metrics(reached, self.shrunk.expected, self.expanded.expected)


@dataclass(frozen=True, slots=True)
class Level:
    """Units, or problems: support at one hit, and at `STABLE_HITS` hits (None if the plan stops before)."""

    total: int
    any_hit: Support
    stable: Support | None


@dataclass(frozen=True, slots=True)
class Spellings:
    """The same of the spellings of correct answers that either side sampled; `Noise.expected` is not known (NaN)."""

    level: Level
    lost: int
    """Spellings that only the base reached, of all samples."""
    respelled: int
    """Those of them whose answer the policy reaches in another spelling."""


@dataclass(frozen=True, slots=True)
class Curves:
    """pass@k of both sides from all their draws; NaN at a budget that a side's smallest problem does not reach."""

    ks: tuple[int, ...]
    base: tuple[Estimate, ...]
    policy: tuple[Estimate, ...]
    difference: tuple[Estimate, ...]
    """Base minus policy: positive where the base leads."""
    leads: tuple[Lead, ...]
    """Who is ahead, in order of k, over the budgets that both sides reach; empty if the curves are equal."""

    @property
    def state(self) -> CurvesState:
        """Leads within noise do not count."""
        if not self.leads:
            return "equal"
        clear = {lead.leader for lead in self.leads if lead.beyond_noise}
        if not clear:
            return "undecided"
        return "crosses" if len(clear) == 2 else "base_ahead" if "base" in clear else "policy_ahead"


@dataclass(frozen=True, slots=True)
class Contrast:
    """A mean over problems on both sides, and policy minus base on the problems where both are known."""

    base: Estimate
    policy: Estimate
    difference: Estimate


@dataclass(frozen=True, slots=True)
class Perplexity:
    """exp of the mean negative log-probability per token (sequence, then problem means), by what became of a problem.

    `estimates` has "all" and the four of `support.CELLS`, problems being in support at one hit.
    """

    drawn_by: Literal["base", "policy"]
    under: Literal["itself", "base", "policy"]
    estimates: Mapping[str, Estimate]


@dataclass(frozen=True, slots=True)
class Scope:
    """All problems, those of a task or those of a domain.

    Support, majority, plug-in entropy and cover are at k draws a side; where a side has more, as expected of k of them.
    """

    name: str
    problems: int
    one_unit: bool
    """Every problem is one unit, so that `units` and `problem_level` say the same."""
    k_min: int
    k_max: int
    """The smallest and the largest k of a problem."""
    cut: bool
    """Support is that of fewer samples than were drawn: a mean over subsets."""
    n_min: int
    """Fewest draws that a problem has on either side."""
    units: Level
    problem_level: Level
    curves: Curves
    rows_k: int
    """Draws of a problem that majority, plug-in entropy and cover are about, the fewest where they differ."""
    rows: Mapping[str, Contrast]
    """Keys: see `offleash.eval.comparison.scopes.ROWS`."""
    perplexity: tuple[Perplexity, ...]
    spellings: Spellings | None
    """Of the problems whose task tells spellings of one answer apart; None if there are none."""


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """Units at a threshold `eps`: by estimated rates, and by empirical Bayes (see `stats.posterior`)."""

    eps: float
    observed: Dynamics
    posterior: Mapping[str, Estimate]
    noise: Mapping[str, float]
    """`support.METRICS` of a second sample of the base, as expected, counted like `observed`."""


@dataclass(frozen=True, slots=True)
class LeashLevel:
    """Units, or problems: what k draws of the reweighted base would show, and how the policy stands against it."""

    cells: Mapping[str, float]
    """Expected counts of `support.CELLS`."""
    against: AgainstLine
    word: Word | None
    """See `stats.leash.verdict`; None where nothing can be said."""


@dataclass(frozen=True, slots=True)
class Leash:
    """KL-optimal reweighting of the base at the policy's pass@1, estimated from the base's pools."""

    units: LeashLevel
    problem_level: LeashLevel
    pass_at_k: tuple[float, ...]
    """At the budgets of `Curves.ks`; NaN where the base has fewer draws."""


@dataclass(frozen=True, slots=True)
class Importance:
    """Units above `eps` by the draws of both sides, weighed under both models (see `stats.importance`)."""

    eps: float
    estimates: Mapping[str, Estimate]
    """As in `Support`; empty if withheld."""
    effective_samples: float
    log_ratio_variance: float
    withheld: str
    """Why there are no estimates; "" if there are."""


@dataclass(frozen=True, slots=True)
class Example:
    """A unit lost or gained, with a completion of each side: one that hits it, and the first draw of the other."""

    task: str
    change: Change
    whole_problem: bool
    """The other side reached no correct answer of the problem at all."""
    sure: bool
    """Beyond chance by itself: see `Noise.sure_units`."""
    prompt: str
    gold: str
    base_text: str | None
    policy_text: str | None


@dataclass(frozen=True, slots=True)
class Moved:
    """Units lost, or units gained; `examples` are the first few: beyond chance first, then whole problems."""

    units: int
    problems: int
    examples: tuple[Example, ...]


@dataclass(frozen=True, slots=True)
class PolicyResult:
    """One policy against the base. With one task `tasks` holds `overall` again; likewise `domains`."""

    side: SideInfo
    overall: Scope
    tasks: tuple[Scope, ...]
    domains: tuple[Scope, ...]
    sensitivity: tuple[Sensitivity, ...]
    importance: Importance | None
    """None if the pools are not scored under both models."""
    leash: Leash | None
    """None without units, and for adaptive plans, which stop counting hits."""
    lost: Moved
    gained: Moved


@dataclass(frozen=True, slots=True, eq=False)
class TaskPools:
    """The pools of one task that were compared, for reading their samples; `policies` by label, in order."""

    task: str
    base: Pool
    policies: Mapping[str, Pool]
    k: int
    """The first k draws of each problem are those that were compared."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Everything. Two or more policies are a series, in the order given."""

    base: SideInfo
    policies: tuple[PolicyResult, ...]
    confidence: float
    warnings: tuple[str, ...]
    """What limits how far these numbers can be trusted."""
    notes: tuple[str, ...]
    """What was done to make the numbers comparable."""
    pools: tuple[TaskPools, ...] = field(default=(), compare=False, repr=False)
    """Those with a fixed number of draws: under a plan that stops early hits are no measure of support."""
