"""What SupportCallback samples: a task, or the task made of held-out rows and the trainer's own reward function."""

from typing import Any, Literal

from offleash.callbacks.policy.ranks import Ranks
from offleash.callbacks.policy.trainer_protocol import PolicyTrainer
from offleash.callbacks.policy.trl_seam import rollout_features
from offleash.eval.console import say
from offleash.eval.errors import ConfigError
from offleash.eval.problem import RewardedTask, Task
from offleash.eval.tasks.dataset_task import Answer, DatasetTask
from offleash.eval.tasks.identity import add_code_version
from offleash.eval.verify.dry_call import check_parts, check_task
from offleash.eval.verify.reward_call import Reward, check_reward_function, reward_name


def probe_task(
    trainer: PolicyTrainer,
    probe: Any,
    correct: Reward | None,
    threshold: float | None,
    answer: Answer | Literal[False] | None,
) -> Task:
    """The probe problems with their verifier, after a dry call of it. Collective: call it on every rank."""
    if hasattr(probe, "verify"):
        if correct is not None or threshold is not None or answer is not None:
            raise ConfigError("a task has its own verifier: leave out correct, threshold and answer, or give a dataset")
        task: Task = probe
    else:
        task = _from_rows(trainer, probe, correct, threshold, answer)
    # The reward of a rollout of several turns may need its environment: there is nothing to try it on yet.
    by_reward = rollout_features(trainer) and isinstance(task, RewardedTask)
    Ranks(trainer.accelerator).on_main(lambda: check_parts(task) if by_reward else check_task(task))
    add_code_version(task)
    return task


def _from_rows(
    trainer: PolicyTrainer, probe: Any, correct: Reward | None, threshold: float | None, answer: Any
) -> DatasetTask:
    rows = trainer.eval_dataset if probe is None else probe
    if rows is None:
        raise ConfigError(
            "SupportCallback needs held-out problems: give probe=..., a dataset like train_dataset or a task, or give "
            "the trainer an eval_dataset"
        )
    if correct is None:
        correct = trainer.reward_funcs[0]
        check_reward_function(correct, "the trainer's first reward")
        if (count := len(trainer.reward_funcs)) > 1 and trainer.accelerator.is_main_process:
            first = reward_name(correct)
            say(f"offleash: correct is what {first} calls so, the first of {count} rewards; correct=... names another")
    if answer is None and {"environment_factory", "rollout_func"} & {*rollout_features(trainer)}:
        answer = False  # what solves an environment is not in the text of the last turn
    loop = getattr(trainer, "async_loop", None)  # where the trainer runs async rewards, and their clients live
    return DatasetTask(rows, correct, threshold=threshold, answer=answer, name="probe", loop=loop)
