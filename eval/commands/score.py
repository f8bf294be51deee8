"""Perplexity and token entropy of a pool's completions, or of reference traces, under any model."""

import argparse
import math
import re
import shutil
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import PurePath
from typing import Any

import numpy as np

from offleash.eval.commands.options import json_option
from offleash.eval.commands.score_options import parser
from offleash.eval.engines.base import LIBRARIES, library_versions
from offleash.eval.engines.model import ModelSource, is_url, resolve_model
from offleash.eval.engines.prompts import Prepared, prepare_prompts
from offleash.eval.errors import ConfigError, PoolError
from offleash.eval.files import write_atomic
from offleash.eval.pool.pool import Pool
from offleash.eval.problem import Problem
from offleash.eval.report.numbers import estimate, number
from offleash.eval.scoring.score_folder import ScoreFolder, ScoreRows, ScoreSpec, find_scores
from offleash.eval.scoring.summary import summarise
from offleash.eval.scoring.tokens import TextEncoder, find_encoder
from offleash.eval.tasks import load_task


def main(words: list[str]) -> int:
    options = parser().parse_args(words)
    _check(options)
    sources = [_source(options, name) for name in options.model]
    return _score_traces(options, sources) if options.traces else _score_pools(options, sources)


def _check(options: argparse.Namespace) -> None:
    if bool(options.pools) == bool(options.traces):
        raise ConfigError("name what to score: pools (offleash score POOL ...), or files with --traces; not both")
    strange = {
        True: {"--k": options.k, "--limit": options.limit, "--name": options.name, "--force": options.force or None},
        False: {"--task": options.task, "--json": options.json, "--markdown": options.markdown},
    }[bool(options.traces)]
    if given := [flag for flag, value in strange.items() if value is not None]:
        raise ConfigError(f"{', '.join(given)}: only for {'pools' if options.traces else '--traces'}")
    _check_values(options)


def _check_values(options: argparse.Namespace) -> None:
    if not 0 < options.temperature < math.inf:
        raise ConfigError(f"--temperature must be above 0 and finite, got {options.temperature:g}")
    if not options.save_every >= 0:
        raise ConfigError(f"--save-every must be 0 seconds or more, got {options.save_every:g}")
    for low, flag in ((options.k, "--k"), (options.limit, "--limit"), (options.batch_tokens, "--batch-tokens")):
        if low is not None and low < 1:
            raise ConfigError(f"{flag} must be at least 1, got {low}")
    if options.name is not None and (len(options.model) > 1 or not re.fullmatch(r"\w[\w.@+-]*", options.name)):
        raise ConfigError(f"--name names the scores of one model, in letters, digits and .@+-_; got {options.name!r}")
    for path in (options.json, options.markdown):
        if path is not None and (path.is_dir() or not path.parent.is_dir()):
            why = "it is a folder" if path.is_dir() else "there is no such folder"
            raise ConfigError(f"cannot write {path}: {why}")


def _source(options: argparse.Namespace, name: str) -> ModelSource:
    if is_url(name):
        raise ConfigError(f"--model {name} is a server, which does not give full distributions: name the weights")
    return resolve_model(name, revision=options.revision, tokenizer=options.tokenizer, dtype=options.dtype)


def _load(source: ModelSource) -> Any:
    from offleash.eval.engines.transformers_engine import TransformersEngine  # imports torch, which --help need not

    return TransformersEngine(source, context=0).model


# Pools


def _score_pools(options: argparse.Namespace, sources: list[ModelSource]) -> int:
    pools = [Pool.open(path) for path in options.pools]
    # All refusals come before any weight is loaded.
    jobs = [(source, [_job(options, source, pool) for pool in pools]) for source in sources]
    for source, of_model in jobs:
        model: Any = None
        for pool, folder, encoder, prepared in of_model:
            _show(pool, folder, prepared)
            if _is_done(options, pool, folder, prepared):
                print(f"complete: nothing to score in {folder.path}")
            else:
                model = model or _load(source)
                _run(options, pool, folder, model, encoder, prepared)
            _report(options, folder, len(prepared.prompts))
    return 0


def _job(
    options: argparse.Namespace, source: ModelSource, pool: Pool
) -> tuple[Pool, ScoreFolder, TextEncoder, Prepared]:
    if options.k is not None and options.k > pool.spec.k:
        raise PoolError(f"{pool.path} has a budget of {pool.spec.k} draws per problem, but --k is {options.k}")
    encoder = find_encoder(source, options.end_token, pool.spec)
    arguments = json_option(options.template_args, "--template-args")
    prepared = prepare_prompts(pool.problems, source.tokenizer, options.template, arguments)
    _check_template(options, pool, source, prepared)
    _check_samples(options, pool)
    spec = ScoreSpec(
        pool=pool.spec.fingerprint(),
        model=source.name,
        revision=source.revision,
        weights=source.weights,
        dtype=source.dtype,
        template=prepared.template,
        temperature=options.temperature,
        end_token=encoder.end_token,
        versions=library_versions(*LIBRARIES),
    )
    same = next((one.name for one in find_scores(pool) if not one.spec.differences(spec)), None)
    name = options.name or same or _name(source.name)
    return (
        pool,
        ScoreFolder.open_or_create(pool, name, spec),
        encoder,
        replace(prepared, prompts=prepared.prompts[: options.limit]),
    )


def _check_samples(options: argparse.Namespace, pool: Pool) -> None:
    from offleash.eval.scoring.pool_scores import wanted_draws

    if not wanted_draws(pool, len(pool.problems[: options.limit]), options.k):
        few = "" if options.k is options.limit is None else " among those that --k and --limit leave"
        raise PoolError(f"{pool.path} has no samples{few}: draw them with offleash sample, or bring its parts back")


def _check_template(options: argparse.Namespace, pool: Pool, source: ModelSource, prepared: Prepared) -> None:
    """Another prompt in front of the same completion is another number."""
    theirs = pool.spec.template
    if theirs == prepared.template or options.force:
        return
    if theirs == "unknown" or theirs.startswith("server:"):
        print(f"offleash: {pool.path} does not say with which template it was drawn", file=sys.stderr)
        return
    raise PoolError(
        f"{pool.path} was drawn with another template or tokenizer than {source.name} has (template: {theirs[:12]} -> "
        f"{prepared.template[:12]}): give the --template, --template-args or --tokenizer it was drawn with, or --force"
    )


def _name(model: str) -> str:
    """Readable, and a file name: the end of a path, or a hub id."""
    parts = [part for part in PurePath(model).parts[-3:] if part.strip("/.")]
    return re.sub(r"[^\w.@+-]+", "-", "-".join(parts)).strip("-.") or "model"


def _is_done(options: argparse.Namespace, pool: Pool, folder: ScoreFolder, prepared: Prepared) -> bool:
    from offleash.eval.scoring.pool_scores import wanted_draws

    problems = len(prepared.prompts)
    return int(folder.done()[:problems, : options.k].sum()) >= wanted_draws(pool, problems, options.k)


def _run(
    options: argparse.Namespace, pool: Pool, folder: ScoreFolder, model: Any, encoder: TextEncoder, prepared: Prepared
) -> None:
    from offleash.eval.scoring.pool_scores import score_pool

    started = time.monotonic()
    count = score_pool(
        pool,
        folder,
        model,
        encoder,
        _ids(prepared),
        k=options.k,
        batch_tokens=options.batch_tokens,
        save_every=options.save_every,
    )
    seconds = max(time.monotonic() - started, 1e-9)
    print(f"scored {count:,} completions in {seconds:.1f} s ({count / seconds:,.1f}/s)")


def _ids(prepared: Prepared) -> list[list[int]]:
    return [[i for i in prompt if isinstance(i, int)] for prompt in prepared.prompts]


def _show(pool: Pool, folder: ScoreFolder, prepared: Prepared) -> None:
    spec = folder.spec
    own = "the model that drew them" if spec.weights == pool.spec.weights else f"not {pool.spec.model}, which drew them"
    end = f"{spec.end_token!r} after what was not cut" if spec.end_token else "none"
    rows = {
        "pool": f"{pool.path}: {pool.spec.task}, {len(prepared.prompts)} problems",
        "under": f"{spec.model} ({own}), weights {spec.weights[:24]}, {spec.dtype}",
        "template": prepared.words,
        "tokens": f"of the stored text, end token {end}; temperature {spec.temperature:g}",
        "scores": f"{folder.path} ({spec.fingerprint()[:12]})",
    }
    print("\n".join(f"{name:10}{value}" for name, value in rows.items()), flush=True)


def _report(options: argparse.Namespace, folder: ScoreFolder, problems: int) -> None:
    rows = folder.read()
    rows = rows.where((rows.problem_r < problems) & (rows.index_r < (options.k or np.inf)))
    found = summarise(rows.problem_r, rows.nll_r, rows.entropy_r, rows.tokens_r)
    print(
        f"perplexity {estimate(found.perplexity, number)}, token entropy {estimate(found.token_entropy, number)} nats, "
        f"{estimate(found.tokens, number)} tokens: {found.sequences:,} completions of {found.tokens.n:,} problems"
    )
    for text in _shortcomings(rows):
        print(f"offleash: {folder.path}: {text}", file=sys.stderr)


def _shortcomings(rows: ScoreRows) -> list[str]:
    unscored = np.isnan(rows.logprob_r)
    counts: Mapping[str, int] = {
        "have no text stored": int(np.isnan(rows.tokens_r).sum()),
        "are empty": int((rows.tokens_r == 0).sum()),
        "do not fit the model's context with their prompt": int((unscored & (rows.tokens_r > 0)).sum()),
    }
    found = [
        f"{count:,} of {len(unscored):,} completions {what}: not scored" for what, count in counts.items() if count
    ]
    if respelled := int(rows.respelled_r.sum()):
        known = int((~unscored & np.isfinite(rows.drawn_r)).sum())
        found.append(
            f"{respelled:,} of {known:,} completions were drawn in another number of tokens than their text gives: "
            "what is scored is another spelling of the same text"
        )
    return found


# Traces


def _score_traces(options: argparse.Namespace, sources: list[ModelSource]) -> int:
    from offleash.eval.report.scores import json_report, markdown_report, notes, text_report

    files = [path.name for path in options.traces]
    if len(set(files)) < len(files):
        raise ConfigError("two of the --traces have the same file name: a table could not tell them apart")
    results = _trace_results(options, sources)
    for text in notes(results):
        print(f"offleash: WARNING: {text}", file=sys.stderr)
    for path, write in ((options.json, json_report), (options.markdown, markdown_report)):
        if path is not None:
            write_atomic(path, write(results, options.temperature).encode("utf-8", "replace"))
    width = max(80, shutil.get_terminal_size((118, 40)).columns)
    sys.stdout.write(text_report(results, options.temperature, width))
    return 0


def _trace_results(options: argparse.Namespace, sources: list[ModelSource]) -> list[Any]:
    from offleash.eval.report.scores import TraceResult
    from offleash.eval.scoring.traces import read_traces, score_traces

    known = _task_problems(options)
    files = [read_traces(path, known) for path in options.traces]
    arguments = json_option(options.template_args, "--template-args")
    results = []
    for source in sources:
        encoder = find_encoder(source, options.end_token)
        prepared = [prepare_prompts(file.problems, source.tokenizer, options.template, arguments) for file in files]
        model = _load(source)
        for file, prompts in zip(files, prepared, strict=True):
            scores = score_traces(
                file,
                model,
                encoder,
                _ids(prompts),
                temperature=options.temperature,
                batch_tokens=options.batch_tokens,
                title=f"{file.path.name} under {source.name}",
            )
            results.append(TraceResult(file, source, prompts.template, encoder.end_token, scores))
        del model
    return sorted(results, key=lambda one: options.traces.index(one.traces.path))


def _task_problems(options: argparse.Namespace) -> dict[str, Problem] | None:
    if options.task is None:
        return None
    task = load_task(options.task, **json_option(options.task_args, "--task-args"))
    return {problem.id: problem for problem in task.problems}
