"""Rehearsal: GRPO plus the likelihood of the base's own correct answers to training problems.

    loss + eta x mean over tokens of -log pi(token)

over correct base samples, every distinct correct answer of every problem equally often (`weighting: unit`): an answer
that the base gives once in a thousand samples is rehearsed as often as its favorite. That is the forward KL from the
target "uniform over the correct answers that the base can give" up to a constant, where DPH-RL (arXiv 2509.07430),
whose loss `anchor` has, holds the policy at the base's own probabilities.

It is supervised learning on base samples beside GRPO, and its cost is in those samples: `problems` x `k` draws before
the first step, once for all runs. They have to be counted when it is compared with methods that draw none.
`mode_replay` is the same loss fed from the run's own rollouts.
"""

from offleash.train.explorers.samples.rehearsing import BaseRehearsing


class Rehearsal(BaseRehearsing):
    """Args:
    eta: weight of the likelihood.
    weighting: unit (distinct correct answers are equally likely) or sample (correct base samples are).
    gate: only problems whose base success rate is at most this.
    problems: the number of training problems, taken from the start.
    k: base samples per problem.
    batch: samples per micro-batch, over all ranks; None takes a quarter of its rollouts.
    fresh: draw base samples for the run's own seed, instead of one set for all seeds.
    """

    name = "rehearsal"

    def __init__(
        self,
        eta: float = 1.0,
        weighting: str = "unit",
        gate: float = 1.0,
        problems: int = 1024,
        k: int = 32,
        batch: int | None = None,
        fresh: bool = False,
    ) -> None:
        super().__init__(eta, weighting, gate, problems, k, batch, fresh)
