"""Draw completions of a model on tasks and verify them: a pool."""

import argparse
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from offleash.eval.commands.options import json_option
from offleash.eval.commands.sample_options import SUCCESSES, parser
from offleash.eval.engines import check_engine_args, find_engine, load_engine
from offleash.eval.engines.base import Engine, library_versions
from offleash.eval.engines.model import ModelSource, is_url, resolve_model
from offleash.eval.engines.prompts import Prepared, prepare_prompts
from offleash.eval.errors import ConfigError
from offleash.eval.fingerprint import problems_fingerprint
from offleash.eval.pool.fill import Totals, draw
from offleash.eval.pool.ledger import Ledger
from offleash.eval.pool.pool import Pool
from offleash.eval.pool.spec import PoolSpec
from offleash.eval.problem import Problem, Task
from offleash.eval.sampling import Plan, Sampling
from offleash.eval.tasks import load_task
from offleash.eval.verify.health import Failures

LONGEST = 4096
MOST = 10_000_000
"""Draws of one problem, of which a pool keeps track in memory."""


class Job(NamedTuple):
    """One task to be drawn into one pool."""

    task: Task
    problems: list[Problem]
    prepared: Prepared
    folder: Path


def main(words: list[str]) -> int:
    options = parser().parse_args(words)
    engine_name = options.engine or ("openai" if is_url(options.model) else "transformers")
    find_engine(engine_name)  # a name that is none should fail before anything slow
    _check_values(options)
    _check_company(options, engine_name)
    _check_ray(options, engine_name)
    source = _source(options, engine_name)
    check_engine_args(engine_name, source, **json_option(options.engine_args, "--engine-args"))
    jobs = _jobs(options, source)
    sampling = _sampling(options, source, jobs)
    pools = [_open_pool(options, source, engine_name, job, sampling) for job in jobs]
    engine: Engine | None = None
    try:
        for job, pool in zip(jobs, pools, strict=True):
            _show(pool, job)
            ledger = Ledger(pool)
            if all(ledger.is_done(p) for p in range(len(job.problems))):
                print(f"complete: nothing to draw in {pool.path}")
                continue
            if engine is None:
                context = max(job.prepared.longest for job in jobs) + sampling.max_new_tokens
                engine = _load_engine(options, engine_name, source, context)
            failures = Failures(limit=options.max_verifier_failures)
            totals = draw(
                pool, job.task, engine, job.prepared.prompts, sampling, save_every=options.save_every, failures=failures
            )
            _report(pool, totals)
    finally:
        for owner in (engine, *(job.task for job in jobs)):
            close = getattr(owner, "close", None)  # tasks with worker processes have one
            if close is not None:
                close()
    return 0


def _check_values(options: argparse.Namespace) -> None:
    length, wins = options.max_new_tokens, options.successes
    wanted = {
        "--model": (bool(options.model.strip()), "a hub id, a folder, a server's URL or lab"),
        "--pool": (bool(options.pool.strip()), "a folder, made or continued"),
        "--k": (1 <= options.k <= MOST, f"at least 1 and at most {MOST:,}"),
        "--temperature": (0 < options.temperature < math.inf, "above 0 and finite"),
        "--max-new-tokens": (length is None or length >= 1, "at least 1"),
        "--save-every": (options.save_every >= 0, "0 seconds or more"),
        "--max-verifier-failures": (0 <= options.max_verifier_failures <= 1, "a share between 0 and 1"),
        "--successes": (wins is None or wins >= 1, "at least 1: a plan draws until at least one success"),
    }
    for flag, (good, what) in wanted.items():
        if not good:
            raise ConfigError(f"{flag} must be {what}; got {getattr(options, flag[2:].replace('-', '_'))!r}")


def _check_company(options: argparse.Namespace, engine_name: str) -> None:
    """Flags that would do nothing without another."""
    if options.successes is not None and options.plan != "until":
        raise ConfigError("--successes is for --plan until: add it, or leave both out")
    if options.served_model is not None and engine_name != "openai":
        raise ConfigError(f"--served-model is for a server, and --engine {engine_name} is none: leave it out")
    if options.revision is not None and engine_name == "openai":
        raise ConfigError("--revision is for a model of the hub: what a server serves is its own affair")


def _check_ray(options: argparse.Namespace, engine_name: str) -> None:
    if options.ray is None:
        if options.ray_workers is not None:
            raise ConfigError("--ray-workers is for --ray: add it, or leave both out")
        return
    if engine_name == "openai":
        raise ConfigError("--ray is for engines that load a model: a server is sampled without it")
    from offleash.eval.engines.cluster.ray_engine import import_ray

    import_ray()


def _load_engine(options: argparse.Namespace, name: str, source: ModelSource, context: int) -> Engine:
    arguments = json_option(options.engine_args, "--engine-args")
    if options.ray is None:
        return load_engine(name, source, context=context, **arguments)
    from offleash.eval.engines.cluster.ray_engine import RayEngine

    return RayEngine(name, source, context=context, address=options.ray, workers=options.ray_workers, **arguments)


def _source(options: argparse.Namespace, engine_name: str) -> ModelSource:
    if engine_name == "openai":
        if not is_url(options.model):
            raise ConfigError(f"the openai engine needs a server's URL as --model, got {options.model!r}")
        from offleash.eval.engines.openai_engine import served_model

        return served_model(options.model, options.served_model, options.tokenizer, options.end_token)
    if is_url(options.model):
        raise ConfigError(f"--model {options.model} is a server: sample it with --engine openai")
    return resolve_model(
        options.model,
        revision=options.revision,
        tokenizer=options.tokenizer,
        dtype=options.dtype,
        end_tokens=options.end_token,
    )


def _jobs(options: argparse.Namespace, source: ModelSource) -> list[Job]:
    arguments = options.task_args or ["{}"]
    if len(arguments) not in (1, len(options.task)):
        raise ConfigError(
            f"{len(options.task)} tasks but {len(arguments)} --task-args: give one for all of them, or one for each"
        )
    if len(arguments) == 1:
        arguments = arguments * len(options.task)
    jobs = []
    for name, text in zip(options.task, arguments, strict=True):
        task = load_task(name, **json_option(text, "--task-args"))
        problems = _chosen(task.problems, options.limit, options.ids)
        prepared = prepare_prompts(
            problems, source.tokenizer, options.template, json_option(options.template_args, "--template-args")
        )
        folder = Path(options.pool) if len(options.task) == 1 else Path(options.pool) / task.name.replace("/", "-")
        jobs.append(Job(task, problems, prepared, folder))
    if len({job.folder for job in jobs}) < len(jobs):
        raise ConfigError("two of the tasks have the same name: draw them into pools of their own, one call each")
    return jobs


def _chosen(problems: Sequence[Problem], limit: int | None, ids: Sequence[str] | None) -> list[Problem]:
    """Those with the ids asked for, in the task's order, and of these the first `limit`."""
    if ids:
        wanted = {line for word in ids for line in (_lines(word[1:]) if word.startswith("@") else [word])}
        if strange := wanted - {problem.id for problem in problems}:
            raise ConfigError(f"the task has no problem {sorted(strange)[0]!r}; its ids look like {problems[0].id!r}")
        problems = [problem for problem in problems if problem.id in wanted]
    if limit is not None and limit < 1:
        raise ConfigError(f"--limit must be at least 1, got {limit}")
    return list(problems[:limit])


def _lines(name: str) -> list[str]:
    try:
        return [line for line in Path(name).read_text(encoding="utf-8").splitlines() if line]
    except OSError as error:
        raise ConfigError(f"cannot read the ids in {name}: {error.strerror}") from error


def _sampling(options: argparse.Namespace, source: ModelSource, jobs: Sequence[Job]) -> Sampling:
    longest = max(job.prepared.longest for job in jobs)
    if not longest and options.max_new_tokens is None:
        raise ConfigError("how long the prompts are is known only with --tokenizer: give it, or give --max-new-tokens")
    room = LONGEST if source.context is None else source.context - longest
    length = min(LONGEST, room) if options.max_new_tokens is None else options.max_new_tokens
    if length > room:
        raise ConfigError(
            f"the longest prompt has {longest} tokens, which leaves {room} of the model's {source.context} for a "
            f"completion, but --max-new-tokens is {length}"
        )
    return Sampling(
        temperature=options.temperature,
        top_p=options.top_p,
        top_k=options.top_k,
        min_p=options.min_p,
        repetition_penalty=options.repetition_penalty,
        max_new_tokens=length,
        stop=tuple(options.stop),
    )


def _open_pool(
    options: argparse.Namespace, source: ModelSource, engine_name: str, job: Job, sampling: Sampling
) -> Pool:
    settings: dict[str, Any] = asdict(sampling)
    settings["stop"] = (*sampling.stop, *source.extra_end_tokens)
    wanted = SUCCESSES if options.successes is None else options.successes
    plan = Plan(successes=wanted if options.plan == "until" else None)
    spec = PoolSpec(
        task=job.task.name,
        task_version=job.task.version,
        problems=problems_fingerprint(job.problems),
        template=job.prepared.template,
        model=source.name,
        revision=source.revision,
        weights=source.weights,
        **settings,
        seed=options.seed,
        k=options.k,
        plan=plan,
        engine=engine_name,
        dtype=source.dtype,
        versions=library_versions(),
    )
    answers = [job.task.correct_answers(problem) for problem in job.problems]
    return Pool.open_or_create(job.folder, spec, job.problems, answers)


def _show(pool: Pool, job: Job) -> None:
    """The effective configuration: what pool.json holds, readably."""
    spec = pool.spec
    knobs = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_new_tokens", "stop")
    versions = ", ".join(f"{name} {number}" for name, number in spec.versions.items())
    wins = spec.plan.successes
    plan = f"{spec.k} draws" if wins is None else f"until {wins} successes, at most {spec.k} draws"
    rows = {
        "model": f"{spec.model}{f' @ {spec.revision[:12]}' if spec.revision else ''}, weights {spec.weights[:24]}",
        "task": f"{spec.task} (version {spec.task_version}), {len(job.problems)} problems",
        "template": job.prepared.words,
        "sampling": ", ".join(f"{name} {getattr(spec, name)}" for name in knobs),
        "plan": f"{plan} of each problem, seed {spec.seed}",
        "engine": f"{spec.engine}, {spec.dtype} (the model's generation_config is ignored but for its end tokens)",
        "versions": versions,
        "pool": f"{pool.path} ({spec.fingerprint()[:12]})",
    }
    print("\n".join(f"{name:10}{value}" for name, value in rows.items()), flush=True)


def _report(pool: Pool, totals: Totals) -> None:
    rates = totals.verdicts.rates()
    shares = ", ".join(f"{status.replace('_', ' ')} {rate:.1%}" for status, rate in rates.items() if rate > 0)
    seconds = max(totals.seconds, 1e-9)
    print(
        f"drew {totals.samples:,} samples in {seconds:.1f} s ({totals.samples / seconds:,.1f} samples/s, "
        f"{totals.tokens / seconds:,.0f} tokens/s): pass@1 {totals.pass_at_1:.4f}; {shares}\n"
        f"complete: {pool.path}"
    )
    if duplicates := pool.duplicates():
        print(f"offleash: {duplicates} draws were made twice; the first of each counts", file=sys.stderr)
