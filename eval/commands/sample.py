"""Sample completions of a model on tasks and verify them: a pool."""

import argparse
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from offleash.eval.commands.sample_options import SUCCESSES, parser
from offleash.eval.console import say
from offleash.eval.errors import ConfigError
from offleash.eval.flags import from_flags, json_option
from offleash.eval.pool.fill import Totals
from offleash.eval.pool.pool import Pool
from offleash.eval.pool.sample import Sampler, SampleSettings, SamplingJob
from offleash.eval.problem import Task

_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_new_tokens", "stop")


def main(argv: list[str]) -> int:
    options = parser().parse_args(argv)
    _check_task_args(options)
    with closing(Sampler(options.model, settings_of(options))) as sampler:
        for job in sampler.prepare(_tasks(options, sampler)):
            _show(job)
            totals = sampler.run(job)
            if totals is None:
                say(f"complete: nothing to sample in {job.pool.path}")
            else:
                _report(job.pool, totals)
    return 0


def _check_task_args(options: argparse.Namespace) -> None:
    if len(options.task_args) not in (0, 1, len(options.task)):
        raise ConfigError(
            f"{len(options.task)} tasks but {len(options.task_args)} --task-args: give one for all, or one for each"
        )


def settings_of(options: argparse.Namespace) -> SampleSettings:
    """What the flags of `sample_options` ask for."""
    if options.successes is not None and options.plan != "until":
        raise ConfigError("--successes is for --plan until: add it, or leave both out")
    sampling = {name: getattr(options, name) for name in _SAMPLING if getattr(options, name) is not None}
    successes = SUCCESSES if options.successes is None else options.successes
    return from_flags(
        SampleSettings,
        options,
        sampling={**sampling, "stop": tuple(options.stop)},
        successes=successes if options.plan == "until" else None,
        ids=[name for word in options.ids for name in _ids(word)],
    )


def _ids(word: str) -> list[str]:
    if not word.startswith("@"):
        return [word]
    try:
        return [line for line in Path(word[1:]).read_text(encoding="utf-8").splitlines() if line]
    except OSError as error:
        raise ConfigError(f"cannot read the ids in {word[1:]}: {error.strerror}") from error


def _tasks(options: argparse.Namespace, sampler: Sampler) -> Iterator[tuple[Task, str | Path]]:
    """Each task and its folder; several tasks get subfolders."""
    texts = options.task_args or ["{}"]
    texts = texts * len(options.task) if len(texts) == 1 else texts
    folders: set[str | Path] = set()
    for name, text in zip(options.task, texts, strict=True):
        task = sampler.load_task(name, **json_option(text, "--task-args"))
        folder = options.pool if len(options.task) == 1 else Path(options.pool, task.name.replace("/", "-"))
        if folder in folders:
            raise ConfigError(f"two tasks are called {task.name!r}: sample them into separate pools, one call each")
        folders.add(folder)
        yield task, folder


def _show(job: SamplingJob) -> None:
    """The effective configuration: what pool.json holds, readably."""
    spec = job.pool.spec
    versions = ", ".join(f"{name} {number}" for name, number in spec.versions.items())
    wins = spec.plan.successes
    plan = f"{spec.k} samples" if wins is None else f"until {wins} successes, at most {spec.k} samples"
    rows = {
        "model": f"{spec.model}{f' @ {spec.revision[:12]}' if spec.revision else ''}, weights {spec.weights[:24]}",
        "task": f"{spec.task} (version {spec.task_version}), {len(job.prompts)} problems",
        "template": job.template,
        "sampling": ", ".join(f"{name} {getattr(spec, name)}" for name in _SAMPLING),
        "plan": f"{plan} per problem, seed {spec.seed}",
        "engine": f"{spec.engine}, {spec.dtype} (of the model's generation_config only the end tokens are used)",
        "versions": versions,
        "pool": f"{job.pool.path} ({spec.fingerprint()[:12]})",
    }
    say("\n".join(f"{name:10}{value}" for name, value in rows.items()))


def _report(pool: Pool, totals: Totals) -> None:
    rates = totals.verdicts.rates()
    shares = ", ".join(f"{status.replace('_', ' ')} {rate:.1%}" for status, rate in rates.items() if rate > 0)
    seconds = max(totals.seconds, 1e-9)
    say(
        f"drew {totals.samples:,} samples in {seconds:.1f} s ({totals.samples / seconds:,.1f} samples/s, "
        f"{totals.tokens / seconds:,.0f} tokens/s): pass@1 {totals.pass_at_1:.4f}; {shares}\n"
        f"complete: {pool.path}"
    )
    if duplicates := pool.duplicates():
        say(f"offleash: {duplicates} samples are duplicates; the first of each counts", error=True)
