"""How often the verifier itself failed, and when that is too often to believe a number."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from offleash.eval.errors import VerifyError
from offleash.eval.problem import Verdict

FEW = 8


@dataclass(slots=True)
class Failures:
    """Counts verdicts by status. `check` raises once timeouts and errors are over `limit` of at least `minimum`
    verdicts, or over half of the last batch: then a judge or a worker is gone, however well it went before.

    The minimum keeps one failure among three from stopping a run. A model's own failures (no answer, truncated) are
    counted, and never raise.
    """

    limit: float = 0.01
    minimum: int = 200
    counts: Counter[str] = field(default_factory=Counter)
    last: list[bool] = field(default_factory=list)

    def add(self, verdicts: Iterable[Verdict]) -> None:
        batch = list(verdicts)
        self.counts.update(verdict.status for verdict in batch)
        self.last = [verdict.failed for verdict in batch]

    @property
    def total(self) -> int:
        return self.counts.total()

    @property
    def failed(self) -> int:
        return self.counts["timeout"] + self.counts["error"]

    def rates(self) -> dict[str, float]:
        """Share of each status; NaN before the first verdict."""
        statuses = ("ok", "no_answer", "truncated", "timeout", "error")
        return {status: self.counts[status] / self.total if self.total else float("nan") for status in statuses}

    def check(self) -> None:
        often = self.total >= self.minimum and self.failed > self.limit * self.total
        if often or (len(self.last) >= FEW and sum(self.last) > len(self.last) / 2):
            raise VerifyError(
                f"the verifier failed on {self.failed} of {self.total} completions ({self.counts['timeout']} timeouts, "
                f"{self.counts['error']} errors), over the limit of {self.limit:.1%}: no number from this run can be "
                "trusted. Look at the slow or failing answers, raise the deadline, or start the judge again (the "
                "limit: Failures(limit=...))."
            )
