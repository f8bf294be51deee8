"""Reference traces from a file (other models' reasoning, human solutions) and what a model makes of them.

A row has a `completion` and a `prompt` (each text or chat messages), or a `problem_id` by which a task finds the
prompt. `truncated` true leaves the end token away. Rows of one problem_id, else of one prompt, are one problem.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tqdm.auto import tqdm

from offleash.eval.convert.formats import BadRow, flag, prompt_of, reply, text
from offleash.eval.convert.importer import numbered_rows
from offleash.eval.errors import ConfigError
from offleash.eval.pool.store import valid_text
from offleash.eval.problem import Problem, prompt_key
from offleash.eval.scoring.pool_scores import score_checked
from offleash.eval.scoring.summary import Summary, summarise
from offleash.eval.scoring.tokens import TextEncoder

GROUP = 64
SHOWN = 5


@dataclass(frozen=True, slots=True)
class Traces:
    """The rows of one file; `problem_s` are indices into `problems`."""

    path: Path
    problems: list[Problem]
    problem_s: list[int]
    completions: list[str]
    truncated: list[bool]


class TraceScores(NamedTuple):
    """Of one file under one model. Traces that are empty, or too long for the model's context, are counted and left
    out of the summary."""

    summary: Summary
    empty: int
    too_long: int
    tokens_s: np.ndarray
    """Of every trace as this model spells it."""


def read_traces(path: Path, known: Mapping[str, Problem] | None = None) -> Traces:
    """`known` are a task's problems by id. Raises ConfigError naming the lines that cannot be used."""
    traces = Traces(path, [], [], [], [])
    place: dict[str, int] = {}
    bad: list[str] = []
    for line, row in numbered_rows(path):
        try:
            problem, completion, cut = _parse(row, known)
            at = place.setdefault(problem.id, len(place))
            if at == len(traces.problems):
                traces.problems.append(problem)
            if traces.problems[at].prompt != problem.prompt:
                raise BadRow(f"gives problem_id {problem.id!r:.60} another prompt than before")
        except BadRow as error:
            bad.append(f"line {line} {error}")
            continue
        traces.problem_s.append(at)
        traces.completions.append(completion)
        traces.truncated.append(cut)
    if bad:
        more = f"; and {len(bad) - SHOWN} more" if len(bad) > SHOWN else ""
        raise ConfigError(f"{path}: {len(bad)} lines cannot be used: {'; '.join(bad[:SHOWN])}{more}")
    if not traces.completions:
        raise ConfigError(f"{path} holds no trace: give rows with prompt (or problem_id) and completion")
    return traces


def score_traces(
    traces: Traces,
    model: Any,
    encoder: TextEncoder,
    prompts: Sequence[list[int]],
    *,
    temperature: float,
    batch_tokens: int = 16384,
    title: str = "",
    show: bool = True,
) -> TraceScores:
    """`prompts` are those of the traces' problems, in order."""
    ids = [
        encoder.ids(completion) + ([] if cut or not completion else encoder.end_ids)
        for completion, cut in zip(traces.completions, traces.truncated, strict=True)
    ]
    fits = [encoder.fits(prompts[p], one) for p, one in zip(traces.problem_s, ids, strict=True)]
    asked = [i for i, one in enumerate(ids) if one and fits[i]]
    nll_s, entropy_s = np.full(len(ids), math.nan), np.full(len(ids), math.nan)
    with tqdm(total=len(asked), desc=title, unit=" traces", disable=not show, mininterval=1.0) as bar:
        for group in _groups(asked):
            scores = score_checked(
                model,
                [prompts[traces.problem_s[i]] for i in group],
                [ids[i] for i in group],
                temperature=temperature,
                batch_tokens=batch_tokens,
            )
            nll_s[group], entropy_s[group] = -scores.logprob_s / scores.tokens_s, scores.entropy_s
            bar.set_postfix_str(f"perplexity {math.exp(np.nanmean(nll_s)):.3f}", refresh=False)
            bar.update(len(group))
    tokens_s = np.array([len(one) for one in ids], dtype=np.float64)
    found = summarise(np.array(traces.problem_s), nll_s, entropy_s, tokens_s)
    return TraceScores(found, sum(not one for one in ids), fits.count(False), tokens_s)


def _groups(places: Sequence[int]) -> Iterator[list[int]]:
    for start in range(0, len(places), GROUP):
        yield list(places[start : start + GROUP])


def _parse(row: Any, known: Mapping[str, Problem] | None) -> tuple[Problem, str, bool]:
    if not isinstance(row, Mapping):
        raise BadRow(str(row) if isinstance(row, BadRow) else "is no JSON object")
    if row.get("completion") is None:
        raise BadRow(f"has no completion (it has {', '.join(map(str, row)) or 'nothing'})")
    completion = valid_text(reply(row["completion"]) or "")
    return _problem(row, known), completion, bool(flag(row.get("truncated"), "truncated"))


def _problem(row: Mapping[str, Any], known: Mapping[str, Problem] | None) -> Problem:
    """The prompt that the row gives comes before the task's."""
    name, prompt = text(row.get("problem_id"), "problem_id"), prompt_of(row.get("prompt"))
    if prompt:
        prompt = _valid_prompt(prompt)
        return Problem(name if name is not None else prompt_key(prompt), prompt, "")
    if name is None:
        raise BadRow("has no prompt and no problem_id")
    if known is None:
        raise BadRow("has no prompt: name the --task that has its problem_id")
    if name not in known:
        raise BadRow(f"has problem_id {name!r:.60}, which the task does not have")
    return known[name]


def _valid_prompt(prompt: str | list[dict[str, Any]]) -> Any:
    """Text or chat messages as a pool would store them."""
    if isinstance(prompt, str):
        return valid_text(prompt)
    return json.loads(valid_text(json.dumps(prompt, ensure_ascii=False, default=str)))
