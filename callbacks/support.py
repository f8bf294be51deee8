"""SupportCallback: what the policy reaches on held-out problems, against what the base reached, while it trains.

Before step 1 and every N steps it draws k samples per probe problem through the trainer's own generation path, verifies
them, keeps them as a pool under the run's folder, and compares that pool with the base's. The base is drawn once: its
pool is keyed by a fingerprint and found again by later runs, variants and seeds. Training is not changed: with the
callback and without it the trajectory is the same.
"""

import json
import math
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from offleash.callbacks.contamination import refuse_overlap
from offleash.callbacks.metrics import base_tag, sample_metrics, support_metrics, token_entropy_tag
from offleash.callbacks.policy.pool import PolicyPool, as_trained
from offleash.callbacks.policy.ranks import Ranks
from offleash.callbacks.policy.sampler import plan_rounds
from offleash.callbacks.policy.trainer_protocol import PolicyTrainer
from offleash.callbacks.summary import HISTORY, run_summary
from offleash.callbacks.tensorboard import custom_layout, lost_and_gained_table, pass_at_k_figure
from offleash.callbacks.trackers import Trackers
from offleash.eval.comparison.changes import changes
from offleash.eval.errors import ConfigError, EngineError, OffleashError, VerifyError
from offleash.eval.files import write_atomic
from offleash.eval.pool.pool import Pool
from offleash.eval.pool.spec import PoolSpec
from offleash.eval.problem import Task
from offleash.eval.sampling import derive_seed
from offleash.eval.stats.passk import powers_of_two


class SupportCallback(TrainerCallback):
    """Measure support, pass@k and entropies on `task`'s problems, which must not be among the training problems.

    Args:
        trainer: a `trl.GRPOTrainer` (or a subclass), after its construction.
        task: the probe problems and their verifier.
        k: samples per problem at each measurement. A unit that is missed may still have probability 3/k (the floor).
        every: steps between measurements; step 0 and the last step are always measured.
        score_k: of the k samples, how many are scored for token entropy and KL to the base.
        batch_size: sequences generated at once, per process.
        seed: of the monitor's samples; the base's pool depends on it, so keep it the same in runs to be compared.
        temperature, top_p, max_new_tokens: of the monitor's samples; None takes the training value.
        base_pools: the folder of base pools; None takes `base-pools` beside the run's folder.
        kl_to_base: measure the KL to the base; needs the base in memory (with `beta > 0` TRL has it there already),
            and is left out where the monitor samples otherwise than plainly at the training temperature.
    """

    def __init__(
        self,
        trainer: PolicyTrainer,
        task: Task,
        *,
        k: int = 64,
        every: int = 50,
        score_k: int = 16,
        batch_size: int = 256,
        seed: int = 0,
        temperature: float | None = None,
        top_p: float | None = None,
        max_new_tokens: int | None = None,
        base_pools: str | Path | None = None,
        kl_to_base: bool = True,
    ) -> None:
        if min(k, every, score_k, batch_size) < 1:
            raise ConfigError("k, every, score_k and batch_size of SupportCallback must be at least 1")
        refuse_overlap(trainer.train_dataset, task)
        self.trainer, self.task = trainer, task
        self.k, self.every, self.seed, self.batch_size = k, every, seed, batch_size
        self.sampling = as_trained(trainer, temperature, top_p, max_new_tokens)
        self.folder = Path(trainer.args.output_dir)
        self.base_pools = Path(base_pools) if base_pools else self.folder.parent / "base-pools"
        self.filler = PolicyPool(
            trainer,
            task,
            k=k,
            sampling=self.sampling,
            rounds=plan_rounds(len(task.problems), k, score_k, batch_size * trainer.accelerator.num_processes),
            # Scores are at the training temperature: over samples of another distribution a log-ratio's mean is no KL.
            kl_to_base=kl_to_base and self._scored_as_sampled(),
        )
        self.ranks = Ranks(trainer.accelerator)
        self.trackers = Trackers(trainer)
        self.entropy_tag = token_entropy_tag(trainer.temperature)
        self.top_k = powers_of_two(k)[-1]
        self.history: dict[int, dict[str, float]] = {}
        self.base_metrics: dict[str, float] = {}
        self.base_pool: Pool | None = None

    def _scored_as_sampled(self) -> bool:
        return self.sampling.untruncated and self.sampling.temperature == self.trainer.temperature

    # What the Trainer calls

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.history = self.ranks.from_main(lambda: self._remembered(state.global_step))
        self._prepare_base(state.global_step)
        if (writer := self.trackers.tensorboard) is not None:
            writer.add_custom_scalars(custom_layout(self.entropy_tag, self.top_k))
        if state.global_step == 0:
            self.measure(0)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        last = state.global_step >= state.max_steps or control.should_training_stop
        if state.global_step % self.every and not last:
            return
        try:
            self.measure(state.global_step)
        except (EngineError, VerifyError):
            raise  # numbers from a broken verifier or other weights are worse than no run
        except (OffleashError, OSError) as error:
            self.trainer.accelerator.print(f"offleash: WARNING: step {state.global_step} was not measured: {error}")

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self.ranks.is_main and self.history:
            print(run_summary(self._record(), self.folder), flush=True)

    # Measuring

    @property
    def latest(self) -> dict[str, float]:
        """The metrics of the last measured step, the same on every rank."""
        return self.history[max(self.history)] if self.history else {}

    def measure(self, step: int) -> dict[str, float]:
        """Draw, verify, keep and compare the policy's samples at this step. Collective: call it on every rank."""
        start = time.perf_counter()
        seed = derive_seed(self.seed, self.trainer.args.seed, step)
        path = self.folder / "pools" / f"step-{step:06d}"
        spec = self.ranks.on_main(lambda: self._step_spec(seed, step, path))
        pool = self.filler.fill(path, spec, seed)
        metrics = self.ranks.from_main(lambda: self._metrics(pool))
        seconds = time.perf_counter() - start
        total = seconds + sum(m["monitor/seconds"] for s, m in self.history.items() if s < step)
        metrics |= self.ranks.share({"monitor/seconds": seconds, "monitor/seconds_total": total})
        self.history[step] = metrics
        if pool is not None:
            self._report(step, pool)
        return metrics

    def _metrics(self, pool: Pool | None) -> dict[str, float]:
        assert pool is not None
        assert self.base_pool is not None
        return {
            **sample_metrics(pool, self.entropy_tag),
            **support_metrics(self.base_pool.hits(), pool.hits()),
            "monitor/samples": float(self.k * len(self.task.problems)),
        }

    def _report(self, step: int, pool: Pool) -> None:
        """Save and show, on the main process. An observer may fail and must not stop a run, but it says so."""
        metrics = self.history[step]
        try:
            write_atomic(self.folder / HISTORY, json.dumps(self._record(), indent=1).encode())
            base = {base_tag(tag): value for tag, value in self.base_metrics.items() if tag != "monitor/kl_base_k1"}
            self.trackers.scalars({**metrics, **base}, step)
            if (writer := self.trackers.tensorboard) is not None:
                self._draw_page(writer, step, pool)
        except Exception as error:  # a full disk or a lost tracker must not end a night of training
            print(f"offleash: WARNING: step {step} was measured but could not be reported: {error!r}", flush=True)
        tqdm.write(
            f"offleash: step {step}: pass@1 {metrics['pass_at_k/1']:.3f}, "
            f"pass@{self.top_k} {metrics[f'pass_at_k/{self.top_k}']:.3f}, "
            f"SRR {_shown(metrics['support/unit/srr'])}, NSCR {_shown(metrics['support/unit/nscr'])} "
            f"({metrics['monitor/seconds']:.1f} s)"
        )

    def _draw_page(self, writer: Any, step: int, pool: Pool) -> None:
        assert self.base_pool is not None
        base, policy = (
            {k: metrics[f"pass_at_k/{k}"] for k in powers_of_two(self.k)}
            for metrics in (self.base_metrics, self.history[step])
        )
        writer.add_figure("pass_at_k/base_and_policy", pass_at_k_figure(base, policy, step), step)
        lost, gained = changes(self.base_pool.hits(), pool.hits())
        writer.add_text("support/lost_and_gained", lost_and_gained_table(lost, gained), step)
        writer.flush()

    # Pools

    def _prepare_base(self, step: int) -> None:
        seed = derive_seed(self.seed, "base")
        spec = self.ranks.on_main(lambda: self._base_spec(seed))
        self.base_pool = self.filler.fill_base(self.base_pools, spec, seed, step=step)
        self.base_metrics = self.ranks.from_main(self._base_metrics)

    def _base_spec(self, seed: int) -> PoolSpec:
        """What the base's pool is; a resumed run must go on with the one it began with."""
        spec = self.filler.base_spec(seed)
        record = self.folder / HISTORY
        if self.history and record.exists():
            before = Path(json.loads(record.read_text())["base_pool"]).name
            if before != (wanted := self.filler.base_name(spec)):
                raise ConfigError(
                    f"{self.folder} was measured against the base pool {before}, and this resume asks for "
                    f"{wanted}: keep the model, the probe problems, k, seed and sampling settings of "
                    "the monitor as they were, or start another run"
                )
        return spec

    def _base_metrics(self) -> dict[str, float]:
        assert self.base_pool is not None
        return sample_metrics(self.base_pool, self.entropy_tag)

    def _step_spec(self, seed: int, step: int, path: Path) -> PoolSpec:
        """What a step's pool is; what an earlier attempt at that step left is thrown away."""
        if path.exists():
            shutil.rmtree(path)
        return self.filler.spec(seed, model=str(self.folder), revision=f"step {step}", weights="in training")

    # The run's folder

    def _remembered(self, step: int) -> dict[int, dict[str, float]]:
        """The history up to the step that a run starts or resumes from. What lies after it is measured again."""
        pools = sorted((self.folder / "pools").glob("step-*"))
        if pools and not step:
            raise ConfigError(
                f"{self.folder} holds the samples of an earlier run ({len(pools)} pools), which would be replaced: "
                "choose another output_dir, or remove that folder's pools"
            )
        for path in pools:
            if int(path.name.removeprefix("step-")) > step:
                shutil.rmtree(path)
        record = self.folder / HISTORY
        if not step or not record.exists():
            return {}
        steps = json.loads(record.read_text())["steps"]
        return {int(s): _floats(metrics) for s, metrics in steps.items() if int(s) <= step}

    def _record(self) -> dict[str, Any]:
        return {
            "k": self.k,
            "token_entropy": self.entropy_tag,
            "base_pool": str(self.base_pool.path) if self.base_pool else None,
            "base": _jsonable(self.base_metrics),
            "steps": {str(step): _jsonable(metrics) for step, metrics in sorted(self.history.items())},
        }


def _shown(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.3f}"


def _jsonable(metrics: Mapping[str, float]) -> dict[str, float | None]:
    return {tag: value if math.isfinite(value) else None for tag, value in metrics.items()}


def _floats(metrics: Mapping[str, float | None]) -> dict[str, float]:
    return {tag: math.nan if value is None else value for tag, value in metrics.items()}
