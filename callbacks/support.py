"""SupportCallback: during training, compare what the policy reaches on held-out problems with what the base reached.

Before step 1 and every N steps it draws k samples per probe problem through the trainer's own generation path, verifies
them, stores them as a pool in the run's folder, and compares that pool with the base's. The base is sampled once: its
pool is keyed by a fingerprint and reused by later runs, variants and seeds. Training is not affected: the trajectory is
the same with and without the callback.
"""

import shutil
import time
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from offleash.callbacks import tags
from offleash.callbacks.charts import custom_layout, lay_out
from offleash.callbacks.contamination import check_dataset_contamination, check_row_contamination
from offleash.callbacks.counted import Counted, count_base, count_pool, pool_metrics, step_metrics
from offleash.callbacks.evaluations import Evaluations, measured_tags
from offleash.callbacks.exact import ExactProbabilities
from offleash.callbacks.importance import ImportanceWeights
from offleash.callbacks.metrics import withheld
from offleash.callbacks.observer import run_observer
from offleash.callbacks.policy.judge import dataset_rows
from offleash.callbacks.policy.pool import PolicyPool, as_trained
from offleash.callbacks.policy.ranks import Ranks
from offleash.callbacks.policy.sampler import isolated_rng
from offleash.callbacks.policy.trainer_protocol import PolicyTrainer
from offleash.callbacks.policy.trl_seam import rollout_features
from offleash.callbacks.probe import probe_task
from offleash.callbacks.report import (
    base_scalars,
    check_same_base,
    check_same_samples,
    record_of,
    step_line,
    step_media,
    step_scalars,
)
from offleash.callbacks.step_zero import check_step_0
from offleash.callbacks.summary import HISTORY, read_record, read_steps, run_summary, write_record
from offleash.callbacks.trackers import Media
from offleash.eval.console import say
from offleash.eval.errors import ConfigError, OffleashError
from offleash.eval.pool.counts import Hits
from offleash.eval.pool.pool import Pool
from offleash.eval.pool.spec import PoolSpec
from offleash.eval.sampling import derive_seed
from offleash.eval.stats.passk import powers_of_two
from offleash.eval.tasks.dataset_task import Answer
from offleash.eval.verify.reward_call import Reward

T = TypeVar("T")


class SupportCallback(TrainerCallback):
    """Measure support, pass@k and entropies on held-out problems, which must not be among the training problems.

    Args:
        trainer: a `trl.GRPOTrainer` (or a subclass), after its construction.
        probe: the held-out problems: a dataset or rows like `train_dataset`, or a Task. None: the trainer's
            `eval_dataset`.
        correct: the reward function that tells correct completions; None: the trainer's first. A Task has its own.
        threshold: a completion is correct from this reward on; may be left out where rewards are 0 and 1.
        answer: from a completion to the class of its answer; None looks for one, False tells no answers apart. See
            `task_from_dataset`, which has more settings.
        k: samples per problem at each measurement. A unit that is missed may still have a probability of up to 3/k.
        successes: draw a problem only until so many of its samples are correct, at most k: 2 to 30 times fewer samples
            in total. Support is then of problems, not of their answers, and what needs a fixed number of samples is
            not reported: the KL-optimal line, intervals, plug-in entropy, coverage.
        every: steps between measurements; step 0 and the last step are always measured.
        score_k: how many of the k samples are scored for token entropy and KL to the base; at most `successes`.
        batch_size: sequences generated at once, per process.
        seed: for the monitor's samples; the base's pool depends on it, so use one seed in runs to be compared.
        temperature, top_p, max_new_tokens: for the monitor's samples; None means the training value.
        base_pools: the folder of base pools; None means `base-pools` beside the run's folder.
        kl_to_base: measure the KL to the base; needs the base in memory (with `beta > 0` TRL already has it), and is
            skipped unless the monitor samples at the training temperature without truncation.
        importance: also estimate support above 1/1000 by importance weights. Each measurement then scores the distinct
            correct completions of base and policy under both models: cheap for short completions. For long ones it
            costs as much as several steps, and the estimate is withheld most of the time.
        exact: also compute the probability of every correct answer, where the task can list them with all their texts
            (countdown with `strict`, colouring, change): exact NSCR at every floor, beside the KL-optimal reweighting
            of the base at the same pass@1. Each measured step leaves `exact/step-*.npz` in the run's folder.

    Example:
        >>> from importlib.resources import files
        >>> from datasets import Dataset
        >>> from trl import GRPOConfig, GRPOTrainer
        >>> from offleash.callbacks import SupportCallback
        >>> trainer = GRPOTrainer(
        ...     model=str(files("offleash.recipes") / "lab" / "base"),
        ...     reward_funcs=lambda completions, **columns: [float("+" in text) for text in completions],
        ...     train_dataset=Dataset.from_list([{"prompt": f"{n},3,4,5=24:"} for n in range(16)]),
        ...     args=GRPOConfig(
        ...         output_dir="runs/example", max_steps=1, num_generations=4, per_device_train_batch_size=8,
        ...         max_completion_length=20, report_to="none", use_cpu=True, bf16=False, disable_tqdm=True,
        ...     ),
        ... )
        >>> held_out = Dataset.from_list([{"prompt": f"{n},3,4,5=24:"} for n in range(20, 24)])
        >>> monitor = SupportCallback(trainer, probe=held_out, k=4, every=1)
        >>> trainer.add_callback(monitor)
        >>> result = trainer.train()  # doctest: +ELLIPSIS
        offleash: base pool ...
        Details:  offleash view runs/example
        >>> sorted(monitor.history)
        [0, 1]
        >>> set(monitor.latest) == set(monitor.history[0])
        True
    """

    def __init__(
        self,
        trainer: PolicyTrainer,
        probe: Any = None,
        *,
        correct: Reward | None = None,
        threshold: float | None = None,
        answer: Answer | Literal[False] | None = None,
        k: int = 64,
        successes: int | None = None,
        every: int = 50,
        score_k: int = 16,
        batch_size: int = 256,
        seed: int = 0,
        temperature: float | None = None,
        top_p: float | None = None,
        max_new_tokens: int | None = None,
        base_pools: str | Path | None = None,
        kl_to_base: bool = True,
        importance: bool = False,
        exact: bool = False,
    ) -> None:
        if min(k, every, score_k, batch_size) < 1:
            raise ConfigError("k, every, score_k and batch_size of SupportCallback must be at least 1")
        if successes is not None and not 1 <= successes <= k:
            raise ConfigError(f"successes of SupportCallback must lie in 1..k ({k}), got {successes}")
        if successes is not None and importance:
            raise ConfigError(
                "importance needs a fixed number of samples per problem: leave out successes, or leave out importance"
            )
        if (features := rollout_features(trainer)) and (importance or exact):
            raise ConfigError(
                "importance and exact need completions of one turn: leave them out, because this trainer has "
                f"{' and '.join(features)}"
            )
        with isolated_rng():  # a reward of the user's may draw random numbers
            task = probe_task(trainer, probe, correct, threshold, answer)
        if "environment_factory" in features:
            check_row_contamination(trainer.train_dataset, dataset_rows(task), task)
        else:
            check_dataset_contamination(trainer.train_dataset, task)
        self.trainer, self.task = trainer, task
        self.k, self.successes = k, successes
        self.every, self.seed, self.batch_size = every, seed, batch_size
        self.sampling = as_trained(trainer, temperature, top_p, max_new_tokens)
        self.folder = Path(trainer.args.output_dir)
        self.base_pools = Path(base_pools) if base_pools else self.folder.parent / "base-pools"
        self.policy_pool = PolicyPool(
            trainer,
            task,
            k=k,
            sampling=self.sampling,
            score_k=score_k,
            batch=batch_size * trainer.accelerator.num_processes,
            # Scores are at the training temperature: over other samples the mean log-ratio is not a KL.
            kl_to_base=kl_to_base and self.sampling.untruncated and self.sampling.temperature == trainer.temperature,
            successes=successes,
        )
        self.importance = ImportanceWeights(self.policy_pool.sampler) if importance else None
        self.exact = ExactProbabilities(self.policy_pool.sampler, task, self.folder) if exact else None
        self.ranks = Ranks(trainer.accelerator)
        self.observer = run_observer(trainer)
        self.top_k = powers_of_two(k)[-1]
        self.history: dict[int, dict[str, float]] = {}
        self.base_metrics: dict[str, float] = {}
        """Empty until the base's pool is whole; the same on every rank."""
        self.base_pool: Pool | None = None
        self.base: Counted | None = None
        """On the main process: read once, so that nothing done to the pool later changes a number."""
        self.evaluations = Evaluations(trainer, measured_tags(k, trainer.temperature, exact, successes), every)

    # Events of the Trainer

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        step = state.global_step
        self.evaluations.begin(state)
        self.history = self.ranks.from_main(lambda: self._remembered(step))
        if self.exact is not None:
            self.exact.begin(step)
        self.observer.attempt("has no layout for TensorBoard", step, self._lay_out)
        # Before the first step nothing is lost yet: what is wrong with the settings or the pools is an error here.
        if step == 0:
            found = self.observer.attempt("was not measured", step, lambda: self.measure(0), (OffleashError,))
            if found is not None:
                self.evaluations.add_row(found, state)
        else:
            with isolated_rng():
                prepare = partial(self.ranks.on_all, lambda: self._prepare_base(step), waits=True)
                self.observer.attempt("has no base pool", step, prepare, (OffleashError,))

    def _lay_out(self) -> None:
        if (writer := self.observer.trackers.tensorboard) is not None:
            unknown = set() if self.successes is None else withheld(self.k, self.successes)
            lay_out(writer, custom_layout(self.trainer.temperature, self.top_k, self.exact is not None, unknown))

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        last = state.global_step >= state.max_steps or control.should_training_stop
        if state.global_step % self.every and not last:
            return
        step = state.global_step
        found = self.observer.attempt("was not measured", step, lambda: self.measure(step))
        if found is not None:
            self.evaluations.report(found, state, control)

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if metrics is not None:
            self.evaluations.complete(metrics, self.history.get(state.global_step, {}), state, control)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self.ranks.is_main and self.history:
            self.observer.attempt("has no summary", state.global_step, self._print_summary)

    def _print_summary(self) -> None:
        say(run_summary(self._record(), self.folder))

    # Measuring

    @property
    def latest(self) -> dict[str, float]:
        """The metrics of the last measured step, the same on every rank."""
        return self.history[max(self.history)] if self.history else {}

    def measure(self, step: int) -> dict[str, float]:
        """Sample the policy at this step, verify, store, compare with the base. Collective: call it on every rank."""
        with isolated_rng():
            return self.ranks.on_all(lambda: self._measure(step), waits=True)

    def _measure(self, step: int) -> dict[str, float]:
        start = time.perf_counter()
        self.policy_pool.sampler.base.check_unchanged(step)
        if not self.base_metrics:
            self._prepare_base(step)
        seed = derive_seed(self.seed, self.trainer.args.seed, step)
        path = self.folder / "pools" / f"step-{step:06d}"
        spec = self.ranks.on_main(lambda: self._step_spec(seed, step, path))
        pool = self.policy_pool.fill(path, spec, seed)
        counted = self.ranks.on_main(lambda: count_pool(_there(pool)))
        metrics = self.ranks.from_main(lambda: self._metrics(counted))
        if step == 0:
            self.ranks.on_main(lambda: self._check_step_0(metrics, counted, path))
        if self.importance is not None:
            metrics |= self.importance.measure(self.base_pool, pool, self.base.hits if self.base else None)
        if self.exact is not None:
            metrics |= self.exact.measure(step)
        seconds = time.perf_counter() - start
        total = seconds + sum(m[tags.SECONDS.tag] for s, m in self.history.items() if s < step)
        metrics |= self.ranks.share({tags.SECONDS.tag: seconds, tags.SECONDS_TOTAL.tag: total})
        self.history[step] = metrics
        if counted is not None:
            self.observer.attempt("was not reported", step, partial(self._report, step, counted.hits))
        return metrics

    def _metrics(self, counted: Counted | None) -> dict[str, float]:
        found = step_metrics(_there(self.base), _there(counted), self.trainer.temperature)
        return {**found, tags.MONITOR_FAILED.tag: float(self.observer.failed)}

    def _check_step_0(self, metrics: dict[str, float], counted: Counted | None, path: Path) -> None:
        base = str(_there(self.base_pool).path)
        check_step_0(metrics, _there(self.base), _there(counted), base, str(path))

    def _report(self, step: int, hits: Hits) -> None:
        """Save and log, on the main process."""
        self.observer.attempt("is not in " + HISTORY, step, lambda: write_record(self.folder, self._record()))
        self._log(step, hits)
        self.observer.attempt("has no line", step, lambda: say(step_line(step, self.history[step], self.k)))

    def _log(self, step: int, hits: Hits) -> None:
        base = base_scalars(self.base_metrics, self.k, self.trainer.temperature)
        self.observer.scalars({**step_scalars(self.history[step], step == min(self.history)), **base}, step)
        self.observer.media(lambda: self._media(step, hits), step)

    def _media(self, step: int, hits: Hits) -> Media:
        steps = {number: metrics for number, metrics in self.history.items() if number <= step}
        return step_media((self.base_metrics, _there(self.base).hits), steps, hits, self.k, self.task.name)

    # Pools

    def _prepare_base(self, step: int) -> None:
        seed = derive_seed(self.seed, "base")
        spec = self.ranks.on_main(lambda: self._base_spec(seed))
        self.base_pool = self.policy_pool.fill_base(self.base_pools, spec, seed, step=step)
        self.base = self.ranks.on_main(lambda: self._count_base(_there(self.base_pool)))
        self.base_metrics = self.ranks.from_main(lambda: pool_metrics(_there(self.base), self.trainer.temperature))

    def _count_base(self, pool: Pool) -> Counted:
        """Counted once; a resumed run must find what it was measured against before."""
        counted = count_base(pool)
        check_same_samples(self._recorded(), self.folder, pool.path, counted)
        return counted

    def _base_spec(self, seed: int) -> PoolSpec:
        """The spec of the base's pool; a resumed run must keep the one it started with."""
        spec = self.policy_pool.base_spec(seed)
        check_same_base(self._recorded(), self.folder, self.policy_pool.base_name(spec, self.base_pools), spec)
        return spec

    def _step_spec(self, seed: int, step: int, path: Path) -> PoolSpec:
        """The spec of a step's pool; what an earlier attempt at that step left is deleted."""
        if path.exists():
            shutil.rmtree(path)
        return self.policy_pool.spec(seed, model=str(self.folder), revision=f"step {step}", weights="in training")

    # The run's folder

    def _remembered(self, step: int) -> dict[int, dict[str, float]]:
        """The history up to the step that a run starts or resumes from; later steps are measured again."""
        pools = [p for p in sorted((self.folder / "pools").glob("step-*")) if p.name[5:].isdecimal()]
        if pools and not step:
            raise ConfigError(
                f"{self.folder} has the samples of an earlier run ({len(pools)} pools), which would be replaced: "
                "choose another output_dir, or remove that folder's pools"
            )
        for path in pools:
            if int(path.name.removeprefix("step-")) > step:
                shutil.rmtree(path)
        return read_steps(self.folder, step) if step else {}

    def _recorded(self) -> dict[str, Any]:
        """What a resumed run wrote before; {} if it measured nothing."""
        return (read_record(self.folder) or {}) if self.history else {}

    def _record(self) -> dict[str, Any]:
        base = self.base_pool, self.base, self.base_metrics
        return record_of(self.folder, self.k, self.trainer.temperature, *base, self.history)


def _there(value: T | None) -> T:
    """What only the main process has."""
    assert value is not None
    return value
