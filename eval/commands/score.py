"""Perplexity and token entropy of a pool's completions, or of reference traces, under any model."""

import argparse
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offleash.eval.commands.config_file import parse_with_config
from offleash.eval.commands.score_options import parser
from offleash.eval.console import say
from offleash.eval.engines.model import ModelSource
from offleash.eval.errors import ConfigError
from offleash.eval.files import check_writable, write_atomic
from offleash.eval.flags import from_flags, json_option
from offleash.eval.problem import Problem
from offleash.eval.scoring.settings import ScoreSettings, resolve_scorer
from offleash.eval.tasks import check_task_name, load_task

if TYPE_CHECKING:
    from offleash.eval.scoring.pool_scores import PoolScores, ScoringJob


def main(argv: list[str]) -> int:
    options = parse_with_config(parser(), argv)
    _check_flag_combinations(options)
    for path in (options.json, options.markdown):
        if path is not None:
            check_writable(path)
    settings = from_flags(ScoreSettings, options)
    sources = [resolve_scorer(model, settings) for model in options.model]
    if options.traces:
        _score_traces(options, sources, settings)
    else:
        _score_pools(options.pools, sources, settings)
    return 0


def _check_flag_combinations(options: argparse.Namespace) -> None:
    if bool(options.pools) == bool(options.traces):
        raise ConfigError("name what to score: either pools (offleash score POOL ...) or files with --traces")
    misplaced = {
        True: {"--k": options.k, "--limit": options.limit, "--name": options.name, "--force": options.force or None},
        False: {"--task": options.task, "--json": options.json, "--markdown": options.markdown},
    }[bool(options.traces)]
    if given := [flag for flag, value in misplaced.items() if value is not None]:
        raise ConfigError(f"{', '.join(given)}: only for {'pools' if options.traces else '--traces'}")
    if options.name is not None and len(options.model) > 1:
        raise ConfigError(f"--name names the scores of one model, but {len(options.model)} are given")
    if options.task is not None:
        check_task_name(options.task)
    files = [path.name for path in options.traces or ()]
    if len(set(files)) < len(files):
        raise ConfigError("two of the --traces have the same file name: the table could not tell them apart")


def _score_pools(paths: list[Path], sources: list[ModelSource], settings: ScoreSettings) -> None:
    from offleash.eval.pool.pool import Pool
    from offleash.eval.scoring.pool_scores import ScoringJob

    pools = [Pool.open(path) for path in paths]
    # All checks come before any weights are loaded.
    jobs = [(source, [ScoringJob.prepare(pool, source, settings) for pool in pools]) for source in sources]
    for source, of_model in jobs:
        model: Any = None
        for job in of_model:
            _show(job)
            new = 0
            if job.is_done:
                say(f"complete: nothing to score in {job.folder.path}")
            else:
                model = _load(source) if model is None else model
                started = time.monotonic()
                new = job.run(model)
                seconds = max(time.monotonic() - started, 1e-9)
                say(f"scored {new:,} completions in {seconds:.1f} s ({new / seconds:,.1f}/s)")
            _report(job.result(new))


def _load(source: ModelSource) -> Any:
    from offleash.eval.scoring.teacher_forcing import load_model  # imports torch, which --help does not need

    say(f"offleash: loading {source.name}", error=True)
    return load_model(source)


def _show(job: "ScoringJob") -> None:
    pool, spec = job.pool, job.folder.spec
    own = "the model that sampled them" if spec.weights == pool.spec.weights else f"sampled by {pool.spec.model}"
    end = f"{spec.end_token!r} unless truncated" if spec.end_token else "none"
    rows = {
        "pool": f"{pool.path}: {pool.spec.task}, {len(job.prompts)} problems",
        "under": f"{spec.model} ({own}), weights {spec.weights[:24]}, {spec.dtype}",
        "template": job.template,
        "tokens": f"of the stored text, end token {end}; temperature {spec.temperature:g}",
        "scores": f"{job.folder.path} ({spec.fingerprint()[:12]})",
    }
    say("\n".join(f"{name:10}{value}" for name, value in rows.items()))


def _report(scores: "PoolScores") -> None:
    from offleash.eval.report.numbers import estimate, number

    found = scores.summary
    say(
        f"perplexity {estimate(found.perplexity, number)}, token entropy {estimate(found.token_entropy, number)} nats, "
        f"{estimate(found.tokens, number)} tokens: {found.sequences:,} completions of {found.tokens.n:,} problems"
    )
    for note in scores.notes:
        say(f"offleash: {scores.path}: {note}", error=True)


def _score_traces(options: argparse.Namespace, sources: list[ModelSource], settings: ScoreSettings) -> None:
    from offleash.eval.report.scores import json_report, markdown_report, notes, text_report
    from offleash.eval.scoring.traces import score_trace_files

    results = score_trace_files(options.traces, sources, settings, _task_problems(options))
    for note in notes(results):
        say(f"offleash: WARNING: {note}", error=True)
    for path, write in ((options.json, json_report), (options.markdown, markdown_report)):
        if path is not None:
            write_atomic(path, write(results, options.temperature).encode("utf-8", "replace"))
    width = max(80, shutil.get_terminal_size((118, 40)).columns)
    say(text_report(results, options.temperature, width).rstrip("\n"))


def _task_problems(options: argparse.Namespace) -> dict[str, Problem] | None:
    if options.task is None:
        return None
    task = load_task(options.task, **json_option(options.task_args, "--task-args"))
    return {problem.id: problem for problem in task.problems}
