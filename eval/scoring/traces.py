"""Scoring reference traces from a file (reasoning of other models, human solutions) under a model.

A row has a `completion` and either a `prompt` (each text or chat messages) or the `problem_id` of a task's problem.
`truncated: true` omits the end token. Rows with the same problem_id, or without one the same prompt, are one problem.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, NamedTuple

import numpy as np
from tqdm.auto import tqdm

from offleash.eval.console import visible
from offleash.eval.convert.formats import check_lines, numbered_rows
from offleash.eval.convert.readers.values import BadRow, as_bool, as_completion, as_prompt, as_text
from offleash.eval.engines.model import ModelSource
from offleash.eval.engines.prompts import prepare_prompts
from offleash.eval.errors import ConfigError
from offleash.eval.pool.store import valid_text
from offleash.eval.problem import Problem, prompt_key
from offleash.eval.scoring.settings import ScoreSettings
from offleash.eval.scoring.summary import Summary, summarize
from offleash.eval.scoring.tokens import TextEncoder, find_encoder, prompt_ids

GROUP = 64


@dataclass(frozen=True, slots=True)
class Traces:
    """The rows of one file; `problem_s` are indices into `problems`."""

    path: Path
    problems: list[Problem]
    problem_s: list[int]
    completions: list[str]
    truncated: list[bool]


class TraceScores(NamedTuple):
    """Scores of one file under one model. Traces that are empty or exceed the model's context are counted and left out
    of the summary."""

    summary: Summary
    empty: int
    too_long: int
    tokens_s: np.ndarray
    """Length of every trace in this model's tokens."""


@dataclass(frozen=True, slots=True)
class TraceResult:
    """One file under one model."""

    traces: Traces
    source: ModelSource
    template: str
    end_token: str
    scores: TraceScores

    @property
    def model(self) -> str:
        """The model's name; of an absolute path only the last two parts."""
        path = PurePath(self.source.name)
        return "/".join(path.parts[-2:]) if path.is_absolute() else self.source.name


def read_traces(path: Path, known: Mapping[str, Problem] | None = None) -> Traces:
    """`known` are a task's problems by id. Raises ConfigError that lists the invalid lines."""
    traces = Traces(path, [], [], [], [])
    place: dict[str, int] = {}
    bad: list[tuple[int, str]] = []
    rows = 0
    for line, row in numbered_rows(path):
        rows += 1
        try:
            problem, completion, truncated = _parse(row, known)
            at = place.setdefault(problem.id, len(place))
            if at == len(traces.problems):
                traces.problems.append(problem)
            if traces.problems[at].prompt != problem.prompt:
                raise BadRow(f"gives problem_id {problem.id!r:.60} a different prompt than before")
        except BadRow as error:
            bad.append((line, str(error)))
            continue
        traces.problem_s.append(at)
        traces.completions.append(completion)
        traces.truncated.append(truncated)
    check_lines(path, bad, rows)
    if not traces.completions:
        raise ConfigError(f"{path} has no traces: give rows with prompt (or problem_id) and completion")
    return traces


def score_trace_files(
    paths: Sequence[Path],
    sources: Sequence[ModelSource],
    settings: ScoreSettings,
    known: Mapping[str, Problem] | None = None,
    *,
    progress: bool = True,
) -> list[TraceResult]:
    """Every file under every model, file by file. `known` are a task's problems by id.

    All files are read, and all prompts of a model prepared, before its weights are loaded.
    """
    from offleash.eval.scoring.teacher_forcing import load_model

    files = [read_traces(path, known) for path in paths]
    results: list[list[TraceResult]] = [[] for _ in files]
    for source in sources:
        encoder = find_encoder(source, settings.end_token)
        prepared = [
            prepare_prompts(file.problems, source.tokenizer, settings.template, settings.template_args)
            for file in files
        ]
        model = load_model(source)
        for file, prompts, found in zip(files, prepared, results, strict=True):
            title = f"{file.path.name} under {source.name}" if progress else None
            scores = score_traces(file, model, encoder, prompt_ids(prompts), settings, title)
            found.append(TraceResult(file, source, prompts.template, encoder.end_token, scores))
        del model
    return [one for found in results for one in found]


def score_traces(
    traces: Traces,
    model: Any,
    encoder: TextEncoder,
    prompts: Sequence[list[int]],
    settings: ScoreSettings,
    title: str | None = None,
) -> TraceScores:
    """`prompts` are those of the traces' problems, in order; `title` labels a progress bar."""
    from offleash.eval.scoring.teacher_forcing import score_checked

    ids = [
        encoder.ids(completion) + ([] if truncated or not completion else encoder.end_ids)
        for completion, truncated in zip(traces.completions, traces.truncated, strict=True)
    ]
    fits = [encoder.fits(prompts[p], one) for p, one in zip(traces.problem_s, ids, strict=True)]
    asked = [i for i, one in enumerate(ids) if one and fits[i]]
    nll_s, entropy_s = np.full((2, len(ids)), math.nan)
    with tqdm(
        total=len(asked), desc=title and visible(title), unit=" traces", disable=title is None, mininterval=1.0
    ) as bar:
        for start in range(0, len(asked), GROUP):
            group = asked[start : start + GROUP]
            rows = [prompts[traces.problem_s[i]] for i in group], [ids[i] for i in group]
            scores = score_checked(model, *rows, settings)
            nll_s[group], entropy_s[group] = scores.nll_s, scores.entropy_s
            bar.set_postfix_str(f"perplexity {math.exp(np.nanmean(nll_s)):.3f}", refresh=False)
            bar.update(len(group))
    tokens_s = np.array([len(one) for one in ids], dtype=np.float64)
    found = summarize(np.array(traces.problem_s), nll_s, entropy_s, tokens_s)
    return TraceScores(found, sum(not one for one in ids), fits.count(False), tokens_s)


def _parse(row: Any, known: Mapping[str, Problem] | None) -> tuple[Problem, str, bool]:
    if not isinstance(row, Mapping):
        raise BadRow(str(row) if isinstance(row, BadRow) else "is not a JSON object")
    if row.get("completion") is None:
        raise BadRow(f"has no completion (it has {', '.join(map(str, row)) or 'nothing'})")
    completion = valid_text(as_completion(row["completion"]) or "")
    return _problem(row, known), completion, bool(as_bool(row.get("truncated"), "truncated"))


def _problem(row: Mapping[str, Any], known: Mapping[str, Problem] | None) -> Problem:
    """The prompt of the row takes precedence over the task's."""
    name, prompt = as_text(row.get("problem_id"), "problem_id"), as_prompt(row.get("prompt"))
    if prompt:
        prompt = _valid_prompt(prompt)
        return Problem(name if name is not None else prompt_key(prompt), prompt, "")
    if name is None:
        raise BadRow("has no prompt and no problem_id")
    if known is None:
        raise BadRow("has no prompt: name the --task of its problem_id")
    if name not in known:
        raise BadRow(f"has problem_id {name!r:.60}, which is not in the task")
    return known[name]


def _valid_prompt(prompt: str | list[dict[str, Any]]) -> Any:
    """Text or chat messages as a pool would store them."""
    if isinstance(prompt, str):
        return valid_text(prompt)
    return json.loads(valid_text(json.dumps(prompt, ensure_ascii=False, default=str)))
