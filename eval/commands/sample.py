"""Sample completions of a model on tasks and verify them: a pool."""

import argparse
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offleash.eval.commands.config_file import parse_with_config
from offleash.eval.commands.data_flags import EITHER, check_data_flags, own_arguments
from offleash.eval.commands.sample_options import SUCCESSES, parser
from offleash.eval.console import say
from offleash.eval.engines import check_engine_name
from offleash.eval.errors import ConfigError
from offleash.eval.flags import from_flags, json_option
from offleash.eval.pool.settings import SampleSettings
from offleash.eval.pool.spec import PoolSpec
from offleash.eval.problem import Task
from offleash.eval.storage import path_at
from offleash.eval.tasks import check_task_name, load_task

if TYPE_CHECKING:
    from offleash.eval.pool.fill import Totals
    from offleash.eval.pool.pool import Pool
    from offleash.eval.pool.preview import Preview

_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_new_tokens", "stop")


def main(argv: list[str]) -> int:
    options = parse_with_config(parser(), argv)
    _check_flag_combinations(options)
    settings = settings_of(options)
    _check_names(options, settings)
    named = _named_tasks(options)
    # pyarrow, and what it loads: only for arguments that can be used
    from offleash.eval.pool.sample import Sampler, check_pool_folder

    with ExitStack() as stack:
        tasks = list(_tasks(named, options.pool, stack))  # before the model, which may be large
        for _, folder in tasks:
            check_pool_folder(folder)
        sampler = stack.enter_context(closing(Sampler(options.model, settings)))
        if options.dry_run:
            from offleash.eval.pool.preview import preview

            for planned in sampler.plan(tasks):
                _show(planned.spec, planned.prompts.words, len(planned.problems), planned.folder)
                _show_cost(preview(planned), options.tokens_per_second)
            return 0
        for job in sampler.prepare(tasks):
            _show(job.pool.spec, job.template, len(job.prompts), job.pool.path)
            totals = sampler.run(job)
            if totals is None:
                say(f"complete: nothing to sample in {job.pool.path}")
            else:
                _report(job.pool, totals)
    return 0


def _check_flag_combinations(options: argparse.Namespace) -> None:
    if bool(options.task) == (options.data is not None):
        raise ConfigError(EITHER)
    check_data_flags(options.data, options)
    tasks = options.task or ["data"]
    if len(options.task_args) not in (0, 1, len(tasks)):
        raise ConfigError(
            f"{len(tasks)} tasks but {len(options.task_args)} --task-args: give one for all, or one for each"
        )
    if options.tokens_per_second is not None and not (options.dry_run and options.tokens_per_second > 0):
        raise ConfigError("--tokens-per-second is a number above 0, for --dry-run")


def _check_names(options: argparse.Namespace, settings: SampleSettings) -> None:
    """What can be refused before anything is loaded."""
    for name in options.task or ():
        check_task_name(name)
    for text in options.task_args:
        json_option(text, "--task-args")
    if settings.engine is not None:
        check_engine_name(settings.engine)


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
        found = [line for line in Path(word[1:]).read_text(encoding="utf-8").splitlines() if line]
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise ConfigError(f"cannot read the ids in {word[1:]}: {why}") from error
    if not found:  # no ids at all would be all problems
        raise ConfigError(f"{word[1:]} holds no id: give one per line, or leave --ids out")
    return found


def _named_tasks(options: argparse.Namespace) -> list[tuple[str, dict[str, Any]]]:
    """The name of each task, and its arguments."""
    given = [json_option(text, "--task-args") for text in options.task_args] or [{}]
    if options.data is not None:
        return [("data", own_arguments(options, given[0]))]
    return list(zip(options.task, given * len(options.task) if len(given) == 1 else given, strict=True))


def _tasks(named: list[tuple[str, dict[str, Any]]], pool: str, stack: ExitStack) -> Iterator[tuple[Task, str | Path]]:
    """Each task and its folder; several tasks get subfolders. What a task has started ends with the stack."""
    folders: set[str | Path] = set()
    for name, arguments in named:
        task = load_task(name, **arguments)
        stack.callback(getattr(task, "close", lambda: None))
        folder = pool if len(named) == 1 else path_at(pool) / task.name.replace("/", "-")
        if folder in folders:
            raise ConfigError(f"two tasks are called {task.name!r}: sample them into separate pools, one call each")
        folders.add(folder)
        yield task, folder


def _show(spec: PoolSpec, template: str, problems: int, folder: Path) -> None:
    """The effective configuration: what pool.json holds, readably."""
    versions = ", ".join(f"{name} {number}" for name, number in spec.versions.items())
    wins = spec.plan.successes
    plan = f"{spec.k} samples" if wins is None else f"until {wins} successes, at most {spec.k} samples"
    rows = {
        "model": f"{spec.model}{f' @ {spec.revision[:12]}' if spec.revision else ''}, weights {spec.weights[:24]}",
        "task": f"{spec.task} (version {spec.task_version}), {problems} problems",
        "template": template,
        "sampling": ", ".join(f"{name} {getattr(spec, name)}" for name in _SAMPLING),
        "plan": f"{plan} per problem, seed {spec.seed}",
        "engine": f"{spec.engine}, {spec.dtype} (of the model's generation_config only the end tokens are used)",
        "versions": versions,
        "pool": f"{folder} ({spec.fingerprint()[:12]})",
    }
    say("\n".join(f"{name:10}{value}" for name, value in rows.items()))


def _show_cost(found: "Preview", speed: float | None) -> None:
    expected = found.expected_tokens
    most = f"{found.max_tokens:,} tokens at most"
    mean = "" if expected is None else f", {expected:,} at the mean length of the pool's"
    rows = {
        "samples": f"{found.samples:,}: {found.existing:,} exist, {found.missing:,} are missing"
        + (" at most" if found.stops_early else ""),
        "prompts": "of unknown length: the server tokenizes them"
        if found.prompt_tokens is None
        else f"{found.prompt_tokens:,} tokens, the longest {found.longest_prompt:,}",
        "new": f"{most}{mean}",
        "time": "give --tokens-per-second N: `offleash sample` prints the speed of a run at its end",
        "disk": f"{found.bytes / 1e6:,.3g} MB" + (" as the pool's samples so far" if found.is_measured else " at most"),
    }
    if speed is not None:
        hours = [tokens / speed / 3600 for tokens in (found.max_tokens, expected) if tokens is not None]
        rows["time"] = ", ".join(f"{h:,.3g} h {of}" for h, of in zip(hours, ("at most", "at that mean"), strict=False))
    say("\n".join(f"{name:10}{value}" for name, value in rows.items()))


def _report(pool: "Pool", totals: "Totals") -> None:
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
