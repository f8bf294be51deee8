"""Sampling a model on tasks into pools: what `offleash sample` does, as functions.

Everything that can be refused is refused before any weights are loaded and before a pool is made.
"""

from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from offleash.eval.console import say
from offleash.eval.engines import check_engine_args, check_engine_name, load_engine
from offleash.eval.engines.base import Engine, Prompt, library_versions
from offleash.eval.engines.cluster.connection import import_ray
from offleash.eval.engines.model import ModelSource, is_url, resolve_model
from offleash.eval.engines.prompts import Prepared, prepare_prompts
from offleash.eval.errors import ConfigError
from offleash.eval.fingerprint import problems_fingerprint
from offleash.eval.lock import held
from offleash.eval.pool.batch import Totals
from offleash.eval.pool.fill import Fill
from offleash.eval.pool.ledger import Ledger
from offleash.eval.pool.manifest import NAME, check_folder
from offleash.eval.pool.pool import Pool
from offleash.eval.pool.ray_fill import RayFill, RayWorkers
from offleash.eval.pool.rejudge import rejudge_pool
from offleash.eval.pool.settings import MAX_NEW_TOKENS, SampleSettings, shard_of
from offleash.eval.pool.spec import PoolSpec
from offleash.eval.problem import Problem, Task
from offleash.eval.sampling import Plan, Sampling
from offleash.eval.storage import path_at
from offleash.eval.tasks import load_task
from offleash.eval.tasks.identity import add_code_version
from offleash.eval.verify.dry_call import check_parts, check_task
from offleash.eval.verify.health import Failures


def sample_pool(
    model: str | Path,
    task: str | Task,
    path: str | Path,
    *,
    k: int,
    sampling: Sampling | Mapping[str, Any] | None = None,
    successes: int | None = None,
    seed: int = 0,
    limit: int | None = None,
    engine: str | None = None,
    task_args: Mapping[str, Any] | None = None,
    progress: bool = True,
    **settings: Any,
) -> Pool:
    """Sample k completions of every problem of a task, verify them and return the pool in `path`, complete.

    `model` is a hub id, a folder, a checkpoint, a folder with a PEFT adapter, the URL of a server, or "lab". `task` is
    a name from `offleash tasks` or a dotted path, built with `task_args`, or a Task. `settings` are the other fields of
    `SampleSettings`: ids, shard, template, engine_args, dtype, revision, tokenizer, ray and so on. The same call
    resumes an incomplete pool and samples exactly what is missing; with a larger k, or more problems, the pool grows;
    with fewer, the returned Pool shows only these. If only the verifier changed, what is stored is judged again. Raises
    PoolError naming the field for a pool that was sampled with other settings, EngineError if requests failed (what
    was sampled is kept), VerifyError if the verifier fails too often.

    >>> from offleash.eval import Sampling, load_task, sample_pool
    >>> task = load_task("countdown", split="probe", n=4)
    >>> pool = sample_pool("lab", task, "pools/base", k=8, sampling=Sampling(max_new_tokens=20), progress=False)
    >>> pool.is_complete
    True
    >>> pool.hits().n_p.tolist()
    [8, 8, 8, 8]
    """
    if task_args and not isinstance(task, str):
        raise ConfigError(f"task_args are for a task given by name; {task.name!r} is built already")
    chosen = SampleSettings(
        k=k, sampling=sampling, successes=successes, seed=seed, limit=limit, engine=engine, **settings
    )
    with closing(Sampler(str(model), chosen)) as sampler:
        loaded = sampler.load_task(task, **(task_args or {})) if isinstance(task, str) else task
        (job,) = sampler.prepare([(loaded, path)])
        sampler.run(job, progress=progress)
    return job.pool


@dataclass(frozen=True, slots=True)
class SamplingJob:
    """A task to be sampled into a pool, which exists and has these very settings."""

    task: Task
    pool: Pool
    prompts: list[Prompt]
    template: str
    """In words."""
    sampling: Sampling


@dataclass(frozen=True, slots=True)
class PlannedPool:
    """A task and its problems, prompted, and the settings of the pool that they are to be sampled into."""

    task: Task
    problems: list[Problem]
    folder: Path
    prompts: Prepared
    sampling: Sampling
    spec: PoolSpec


class Sampler:
    """One model and the engine that runs it, which is loaded when the first pool needs samples.

    `close` ends the engine, and the tasks that `load_task` loaded.
    """

    def __init__(self, model: str, settings: SampleSettings) -> None:
        self.settings = settings
        self.engine_name = settings.engine or ("openai" if is_url(model) else "transformers")
        check_engine_name(self.engine_name)  # before anything slow
        _check_engine_settings(settings, self.engine_name)
        self.source = _resolve(model, settings, self.engine_name)
        check_engine_args(self.engine_name, self.source, **settings.engine_args)
        self._tasks: list[Task] = []
        self._engine: Engine | RayWorkers | None = None
        self._context = 0

    def load_task(self, name: str, **arguments: Any) -> Task:
        self._tasks.append(load_task(name, **arguments))
        return self._tasks[-1]

    def plan(self, tasks: Iterable[tuple[Task, str | Path]]) -> list[PlannedPool]:
        """Check everything and write nothing. All tasks get the same max_new_tokens."""
        settings = self.settings
        chosen = [(task, _chosen(task, settings), check_pool_folder(path)) for task, path in tasks]
        for task, problems, _ in chosen:
            check_task(task, problems)
            add_code_version(task)
        prepared = [
            prepare_prompts(problems, self.source.tokenizer, settings.template, settings.template_args)
            for _, problems, _ in chosen
        ]
        longest = [self._longest(task, prompts) for (task, _, _), prompts in zip(chosen, prepared, strict=True)]
        sampling = self._sampling(max(longest))
        return [
            PlannedPool(
                task, problems, folder, prompts, sampling, self._spec(task, problems, prompts.template, sampling)
            )
            for (task, problems, folder), prompts in zip(chosen, prepared, strict=True)
        ]

    def prepare(self, tasks: Iterable[tuple[Task, str | Path]]) -> list[SamplingJob]:
        """Check everything, then open or create the pool of each task."""
        return [
            SamplingJob(one.task, self._open(one), one.prompts.prompts, one.prompts.words, one.sampling)
            for one in self.plan(tasks)
        ]

    def run(self, job: SamplingJob, *, progress: bool = True) -> Totals | None:
        """Sample what the pool lacks; None if it lacks nothing. Raises ConfigError if another process is at it."""
        path = job.pool.path
        if Ledger(job.pool).is_complete:
            return None
        taken = f"another process is sampling {path}: wait for it; the same command then samples what is left"
        with held(path, taken):
            if self._engine is None:
                if progress:
                    say(f"offleash: loading {self.source.name} with {self.engine_name}", error=True)
                self._engine = self._load_engine()
            engine, pool = self._engine, job.pool.again()
            failures = Failures(limit=self.settings.max_verifier_failures)
            if pool.manifest.is_former:
                say(f"offleash: {path} was begun by an earlier version: new samples get other, independent seeds")
            fill = (
                RayFill(pool, job.task, engine, job.prompts, job.sampling, failures)
                if isinstance(engine, RayWorkers)
                else Fill(pool, job.task, engine, job.prompts, job.sampling, self.settings.save_every, failures)
            )
            return fill.run(progress=progress)

    def close(self) -> None:
        for owner in (self._engine, *self._tasks):
            close = getattr(owner, "close", None)  # tasks with worker processes have one
            if close is not None:
                close()

    def _longest(self, task: Task, prepared: Prepared) -> int:
        """The prompt that decides how long a completion may be: the task's, whichever problems are sampled now."""
        if "max_new_tokens" in self.settings.sampling_fields() or len(prepared.prompts) == len(task.problems):
            return prepared.longest
        settings = self.settings
        return prepare_prompts(
            list(task.problems), self.source.tokenizer, settings.template, settings.template_args
        ).longest

    def _sampling(self, longest: int) -> Sampling:
        fields, context = self.settings.sampling_fields(), self.source.context
        asked = fields.get("max_new_tokens")
        if not longest and asked is None:
            raise ConfigError(
                "the length of the prompts is known only with a tokenizer: give tokenizer, or give max_new_tokens"
            )
        room = MAX_NEW_TOKENS if context is None else context - longest
        length = min(MAX_NEW_TOKENS, room) if asked is None else asked
        if length > room:
            raise ConfigError(
                f"the longest prompt has {longest} tokens, which leaves {room} of the model's {context} for a "
                f"completion, but max_new_tokens is {length}"
            )
        self._context = longest + length
        return Sampling(**{**fields, "max_new_tokens": length})

    def _spec(self, task: Task, problems: list[Problem], template: str, sampling: Sampling) -> PoolSpec:
        source = self.source
        return PoolSpec(
            task=task.name,
            task_version=task.version,
            problems=problems_fingerprint(problems),
            template=template,
            model=source.name,
            revision=source.revision,
            weights=source.weights,
            **{**asdict(sampling), "stop": (*sampling.stop, *source.extra_end_tokens)},
            seed=self.settings.seed,
            k=self.settings.k,
            plan=Plan(successes=self.settings.successes),
            engine=self.engine_name,
            dtype=source.dtype,
            versions=library_versions(),
        )

    def _open(self, planned: PlannedPool) -> Pool:
        folder, task, spec = planned.folder, planned.task, planned.spec
        if (folder / NAME).exists() and Pool.open(folder).spec.is_judged_otherwise(spec):
            done = rejudge_pool(folder, task, max_verifier_failures=self.settings.max_verifier_failures)
            say(f"offleash: {folder}: the verifier changed; {done}")
        answers = [task.correct_answers(problem) for problem in planned.problems]
        return Pool.open_or_create(folder, spec, planned.problems, answers)

    def _load_engine(self) -> Engine | RayWorkers:
        settings = self.settings
        if settings.ray is None:
            return load_engine(self.engine_name, self.source, context=self._context, **settings.engine_args)
        return RayWorkers(
            self.engine_name,
            self.source,
            context=self._context,
            address=settings.ray,
            workers=settings.ray_workers,
            **settings.engine_args,
        )


def _check_engine_settings(settings: SampleSettings, engine_name: str) -> None:
    served = engine_name == "openai"
    if settings.served_model is not None and not served:
        raise ConfigError(f"served_model is for a server, which engine {engine_name!r} is not: leave it out")
    if settings.revision is not None and served:
        raise ConfigError("revision is for a model from the hub: a server decides what it serves")
    if settings.ray is None:
        return
    if served:
        raise ConfigError("ray is for engines that load a model: a server is sampled without it")
    import_ray()


def _resolve(model: str, settings: SampleSettings, engine_name: str) -> ModelSource:
    if engine_name == "openai":
        if not is_url(model):
            raise ConfigError(f"the openai engine needs a server's URL as the model, got {model!r}")
        from offleash.eval.engines.openai_engine import served_model

        return served_model(model, settings.served_model, settings.tokenizer, settings.end_tokens)
    if is_url(model):
        raise ConfigError(f"model {model} is a server: sample it with engine openai")
    return resolve_model(
        model,
        revision=settings.revision,
        tokenizer=settings.tokenizer,
        dtype=settings.dtype,
        end_tokens=settings.end_tokens,
    )


def check_pool_folder(path: str | Path) -> Path:
    """The folder; raises an error if it is neither a pool nor can become one."""
    if not str(path).strip():
        raise ConfigError(f"a pool needs a folder, got {path!r}")
    folder = path_at(path)
    check_folder(folder)
    return folder


def _chosen(task: Task, settings: SampleSettings) -> list[Problem]:
    """Those with the ids asked for, in the task's order, and of these the first `limit`."""
    check_parts(task)
    problems = task.problems
    if wanted := set(settings.ids):
        if unknown := wanted - {problem.id for problem in problems}:
            raise ConfigError(f"the task has no problem {sorted(unknown)[0]!r}; its ids look like {problems[0].id!r}")
        problems = [problem for problem in problems if problem.id in wanted]
    number, shards = shard_of(settings.shard)
    chosen = list(problems[: settings.limit])[number - 1 :: shards]
    if not chosen:
        raise ConfigError(f"shard {settings.shard} is empty: there are {len(problems[: settings.limit])} problems")
    return chosen
