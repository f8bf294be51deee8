"""RolloutCallback: what the training rollouts show without further sampling, group by group.

TRL keeps the latest rollouts of all ranks for its completion log.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from accelerate.utils import gather_object
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from offleash.callbacks import tags
from offleash.callbacks.metrics import mean_known
from offleash.callbacks.observer import run_observer
from offleash.callbacks.policy.ranks import Ranks
from offleash.callbacks.policy.sampler import isolated_rng
from offleash.callbacks.policy.trainer_protocol import PolicyTrainer
from offleash.callbacks.policy.trl_seam import latest_rollouts, rollout_features
from offleash.eval.errors import ConfigError, MonitorError
from offleash.eval.images import picture_key
from offleash.eval.problem import Problem, Task, Verdict
from offleash.eval.stats.entropy import answer_entropy
from offleash.eval.transcript import final_turn, transcript
from offleash.eval.verify.verdicts import verdicts_of


def group_metrics(groups: Sequence[Sequence[Verdict]]) -> dict[str, float]:
    """Means over groups (the rollouts of one prompt). A group that is all correct or all wrong has no gradient.

    Rollouts on which the verifier failed are left out, as TRL leaves them out of the baseline; a group without any
    verdict counts nowhere. Where a task judges without naming answers, what is made of them is NaN.
    """
    if not groups or not all(groups):
        raise ValueError("group_metrics needs at least one group, and no empty groups")
    judged = [own for group in groups if (own := [verdict for verdict in group if not verdict.failed])]
    is_named = not any(r.answer is None and r.status == "ok" for group in judged for r in group)
    named = judged if is_named else []
    answers = [[r.answer for r in group if r.answer is not None or r.status != "timeout"] for group in named]
    counts = [list(Counter(own).values()) for own in answers]
    accuracy = [np.mean([r.correct for r in group]) for group in judged]
    return {
        tags.ROLLOUT_ENTROPY.tag: mean_known([answer_entropy(c) for c in counts]),
        tags.ROLLOUT_ANSWERS.tag: mean_known([len(c) for c in counts]),
        tags.ROLLOUT_CORRECT.tag: mean_known([len({r.answer for r in group if r.correct}) for group in named]),
        tags.ALL_CORRECT.tag: mean_known([share == 1 for share in accuracy]),
        tags.ALL_WRONG.tag: mean_known([share == 0 for share in accuracy]),
    }


class RolloutCallback(TrainerCallback):
    """Log answer entropy, distinct answers and groups without a gradient, from the latest training rollouts.

    Off-policy traces of an explorer are not counted.

    Args:
        trainer: a `trl.GRPOTrainer`, after its construction.
        task: the training problems; with a rollout of any other prompt nothing is logged, and a warning says why.

    Nothing is verified twice: where the task's verifier is the reward of Offleash's trainer, its verdicts are taken.
    Elsewhere each process verifies a share. Of a rollout with tools the last turn is verified. Environments and rollout
    functions are refused.

    Example:
        >>> from importlib.resources import files
        >>> from datasets import Dataset
        >>> from trl import GRPOConfig, GRPOTrainer
        >>> from offleash.callbacks import RolloutCallback
        >>> from offleash.eval import load_task
        >>> task = load_task("countdown", split="train", n=16)
        >>> trainer = GRPOTrainer(
        ...     model=str(files("offleash.recipes") / "lab" / "base"),
        ...     reward_funcs=lambda completions, **columns: [float("=" in text) for text in completions],
        ...     train_dataset=Dataset.from_list([{"prompt": problem.prompt} for problem in task.problems]),
        ...     args=GRPOConfig(
        ...         output_dir="runs/example", max_steps=1, num_generations=4, per_device_train_batch_size=8,
        ...         max_completion_length=20, report_to="none", use_cpu=True, bf16=False, disable_tqdm=True,
        ...         logging_steps=1,
        ...     ),
        ... )
        >>> callback = RolloutCallback(trainer, task)
        >>> trainer.add_callback(callback)
        >>> result = trainer.train()  # doctest: +ELLIPSIS
        {...}
        >>> [name.partition("/")[2] for name in sorted(callback.latest)]
        ['all_correct', 'all_wrong', 'answer_entropy', 'distinct_answers', 'distinct_correct']
    """

    def __init__(self, trainer: PolicyTrainer, task: Task) -> None:
        if features := [name for name in rollout_features(trainer) if name != "tools"]:
            raise ConfigError(
                f"RolloutCallback cannot verify the rollouts of this trainer's {' and '.join(features)} by their text: "
                "leave it out; TRL logs their rewards"
            )
        self.trainer, self.task = trainer, task
        self.problems: dict[str, Problem] = {picture_key(problem.prompt): problem for problem in task.problems}
        self.observer, self.ranks = run_observer(trainer), Ranks(trainer.accelerator)
        self.latest: dict[str, float] = {}

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        # The Trainer also logs at the end of a run (train_runtime, ...), when there is nothing new.
        if logs and "reward" in logs:
            found = self.observer.attempt("has no rollout metrics", state.global_step, self._measure)
            self.latest = found or {}
            if self.ranks.is_main:
                self.observer.scalars(self.latest, state.global_step)

    def _measure(self) -> dict[str, float]:
        verdicts = self.ranks.on_all(self._verdicts, waits=True)
        return self.ranks.on_all(lambda: group_metrics(self._groups(verdicts)), waits=False)

    def _verdicts(self) -> list[Verdict]:
        """On the latest rollouts of all ranks: those that the reward was made of, if the task is the trainer's own."""
        known_to = getattr(self.trainer, "latest_verdicts", None)
        known = known_to(self.task) if known_to and not rollout_features(self.trainer) else None
        if known is not None:
            verdicts: list[Verdict] = gather_object(known)
            return verdicts
        return self.ranks.divide(list(zip(*latest_rollouts(self.trainer), strict=True)), self._verify)

    def _verify(self, rollouts: Sequence[tuple[Any, Any]]) -> list[Verdict]:
        problems = [self._problem(picture_key(prompt)) for prompt, _ in rollouts]
        texts = [text if isinstance(text, str) else final_turn(transcript(text)) for _, text in rollouts]
        with isolated_rng():  # a verifier may draw random numbers
            return verdicts_of(self.task.verify, problems, texts)

    def _groups(self, verdicts: Sequence[Verdict]) -> list[list[Verdict]]:
        off_policy = getattr(self.trainer, "latest_off_policy", None) or [False] * len(verdicts)
        rows, size = list(zip(verdicts, off_policy, strict=True)), self.trainer.num_generations
        return [[verdict for verdict, off in rows[i : i + size] if not off] for i in range(0, len(rows), size)]

    def _problem(self, key: str) -> Problem:
        if key not in self.problems:
            raise MonitorError(
                f"a rollout's prompt is not among the problems of {self.task.name!r}: give RolloutCallback the task "
                "that the training dataset was made from"
            )
        return self.problems[key]
