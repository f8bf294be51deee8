"""PKPO: unbiased gradient of pass@k, with a leave-one-out baseline (Walder and Karkhanis, arXiv 2505.15201).

The value of a rollout is what it adds to the best of k: over the sets of k rollouts that contain it, the best reward
minus the best of the other k - 1, averaged over all sets of k. For rewards 0 and 1 with c of G correct that is

    correct: (k / G) C(G-c, k-1) / C(G-1, k-1)        wrong: 0

Not divided by a standard deviation, which would bias the estimator.
"""

from math import comb

from trl import GRPOConfig

from offleash.train.explorers.advantages.pass_at_k import SetObjective
from offleash.train.explorers.checks import check_at_least_1, check_group_size, check_positive


def pkpo_advantage(right: int, total: int, k: int) -> float:
    """The advantage of a correct rollout; that of a wrong one is 0."""
    return k / total * comb(total - right, k - 1) / comb(total - 1, k - 1)


class Pkpo(SetObjective):
    """Args: k, at most num_generations. `scale` (not in the paper) brings the step size close to GRPO's."""

    def __init__(self, k: int = 4, scale: float = 1.0) -> None:
        check_at_least_1("pkpo", k=k)
        check_positive("pkpo", scale=scale)
        self.k, self.scale = k, scale

    def check(self, training: GRPOConfig) -> None:
        check_group_size("pkpo", self.k, training, largest=training.num_generations)

    def of_group(self, right: int, total: int) -> tuple[float, float]:
        return self.scale * pkpo_advantage(right, total, self.k), 0.0
