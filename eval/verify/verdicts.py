"""A verdict for every completion of a batch, whatever the verifier does: every task is verified through here.

An exception is the status "error" of the sample that caused it, never the end of the batch. Errors that Offleash raises
on purpose pass: a judge without an address or workers that cannot start are no sample's fault.
"""

from collections.abc import Sequence
from typing import Protocol

from offleash.eval.errors import OffleashError, VerifyError, first_line
from offleash.eval.problem import Problem, Verdict


class Verify(Protocol):
    """`Task.verify`."""

    def __call__(
        self, problems: Sequence[Problem], completions: Sequence[str], truncated: Sequence[bool] | None = None
    ) -> list[Verdict]: ...


def verdicts_of(
    verify: Verify,
    problems: Sequence[Problem],
    completions: Sequence[str],
    truncated: Sequence[bool] | None = None,
) -> list[Verdict]:
    """One verdict per completion.

    A batch that raises is halved until each completion that makes it raise stands alone: the others are still verified
    together, which is what a pool of workers is good at.
    """
    counts = {len(problems), len(completions), len(completions if truncated is None else truncated)}
    if len(counts) > 1:
        raise ValueError(f"problems, completions and truncated differ in length: {sorted(counts)}")
    if not problems:
        return []
    try:
        verdicts = verify(problems, completions, truncated)
    except OffleashError:
        raise
    except Exception as error:
        if len(problems) == 1:
            return [Verdict(None, False, "error", message=f"{type(error).__name__}: {first_line(error)}")]
        half = len(problems) // 2
        return [
            verdict
            for part in (slice(None, half), slice(half, None))
            for verdict in verdicts_of(
                verify, problems[part], completions[part], None if truncated is None else truncated[part]
            )
        ]
    if len(verdicts) != len(problems):
        name = getattr(verify, "__qualname__", "verify")
        raise VerifyError(f"{name} returned {len(verdicts)} verdicts for {len(problems)} completions")
    return verdicts
