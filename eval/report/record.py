"""A comparison as JSON.

The keys are stable: keys may be added but are never renamed; `format` counts breaking changes.

    {"format": 3, "confidence": 0.95, "warnings": [text], "notes": [text], "base": SIDE,
     "policies": [{"side": SIDE, "overall": SCOPE, "tasks": {name: SCOPE}, "domains": {name: SCOPE},
                   "sensitivity": [{"eps": x, "observed": COUNTS and metrics, "posterior": {name: ESTIMATE},
                                    "noise": metrics of a second sample of the base, expected}],
                   "importance": {eps, "estimates": {name: ESTIMATE}, effective_samples, log_ratio_variance, withheld}
                   or null, "leash": {"unit": LINE, "problem": LINE, "pass_at_k": [{"k": k, "value": x}]} or null,
                   "lost": MOVED, "gained": MOVED}],
     "published": [{name, title, header, rows, note}] (only with --pair: our numbers and the paper's)}

    SIDE      label, series (the run or folder that it is of), model, revision, step (or null), tasks, problems, draws,
              temperature, top_p, max_new_tokens, engine
    SCOPE     problems, one_unit, k_min, k_max, n_min, rows_k, "unit": LEVEL, "problem": LEVEL,
              "pass_at_k": [{"k": k, "base": ESTIMATE, "policy": ESTIMATE, "difference": ESTIMATE}] (base - policy),
              "curves_state": crosses | base_ahead | policy_ahead | undecided | equal, over the k that both sides reach,
              "leads": [{"leader": base | policy, "since": ESTIMATE, "beyond_noise": bool}] in order of k: all but the
              first are crossings, and `since` is the k at which the leader overtakes (high null: never clearly),
              "samples": {row: {"base": ESTIMATE, "policy": ESTIMATE, "difference": ESTIMATE}} (policy - base) with the
              rows avg, majority, tokens, token_entropy, answer_entropy, answer_entropy_corrected, effective_answers,
              pcmd, unseen, unseen_correct, cover_0.2, cover_0.8, no_answer, truncated, timeout, error, kl_base_k1,
              "perplexity": [{"drawn_by": base | policy, "under": itself | base | policy, "all": ESTIMATE,
              "preserved": ...}] (under base or policy: the other model, where it is known),
              "spelling": LEVEL with lost and respelled (spellings lost, and those of an answer that the policy still
              reaches, of all samples), or null where the task does not tell spellings of an answer apart
    LEVEL     total, "hits1": SUPPORT, "hits5": SUPPORT or null
    SUPPORT   preserved, shrunk, expanded, out, srr, ndr, sds, nscr: each an ESTIMATE; detection_limit; what sampling
              alone explains: expected_shrunk (by a second sample of the base), excess_shrunk, p_shrunk (of the count),
              p_strength_shrunk (of how firmly they were held), sure_shrunk (units beyond chance one by one), and the
              same five of expanded
    LINE      KL-optimal reweighting of the base at the policy's pass@1: "cells": {preserved, shrunk, expanded, out},
              expected; "nscr": ESTIMATE of the policy, "line": ESTIMATE, "above": ESTIMATE (policy - line); reached
              (units of the policy outside the base's support); log_weight (1/beta); "verdict": shrinks | keeps |
              as good as reweighting | expands | undecided, or null
    MOVED     units, problems, "examples": [{task, problem_id, answer, base_hits, base_n, policy_hits, policy_n,
              whole_problem, sure (beyond chance by itself), prompt, gold, base_text, policy_text}]
    ESTIMATE  value, low, high, n (number of problems)

Undefined and infinite numbers are null.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass
from typing import Any

from offleash.eval.comparison.result import Comparison, Leash, Level, Moved, PolicyResult, Scope, SideInfo, Support
from offleash.eval.report.tables import Table
from offleash.eval.stats.support import METRICS, Dynamics

FORMAT = 3


def json_text(value: Any) -> str:
    """`value` as a JSON file: dataclasses and named tuples are objects, undefined and infinite numbers null."""
    return json.dumps(_plain(value), indent=1, allow_nan=False) + "\n"


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        value = {field.name: getattr(value, field.name) for field in fields(value)}
    elif hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def json_report(comparison: Comparison, extra_tables: Sequence[Table] = ()) -> str:
    return json_text(
        {
            "format": FORMAT,
            "confidence": comparison.confidence,
            "warnings": comparison.warnings,
            "notes": comparison.notes,
            "base": _side(comparison.base),
            "policies": [_policy(result) for result in comparison.policies],
            **({"published": extra_tables} if extra_tables else {}),
        }
    )


def _policy(result: PolicyResult) -> dict[str, Any]:
    return {
        "side": _side(result.side),
        "overall": _scope(result.overall),
        "tasks": {scope.name: _scope(scope) for scope in result.tasks},
        "domains": {scope.name: _scope(scope) for scope in result.domains},
        "sensitivity": [
            {"eps": row.eps, "observed": _dynamics(row.observed), "posterior": row.posterior, "noise": row.noise}
            for row in result.sensitivity
        ],
        "importance": result.importance,
        "leash": None if result.leash is None else _leash(result.leash, result.overall.curves.ks),
        "lost": _moved(result.lost),
        "gained": _moved(result.gained),
    }


def _side(side: SideInfo) -> dict[str, Any]:
    return {name: value for name, value in asdict(side).items() if name != "specs"}


def _scope(scope: Scope) -> dict[str, Any]:
    curves = scope.curves
    columns = zip(curves.ks, curves.base, curves.policy, curves.difference, strict=True)
    return {
        "problems": scope.problems,
        "one_unit": scope.one_unit,
        "k_min": scope.k_min,
        "k_max": scope.k_max,
        "n_min": scope.n_min,
        "rows_k": scope.rows_k,
        "unit": _level(scope.units),
        "problem": _level(scope.problem_level),
        "pass_at_k": [
            {"k": k, "base": base, "policy": policy, "difference": difference}
            for k, base, policy, difference in columns
        ],
        "curves_state": curves.state,
        "leads": curves.leads,
        "samples": scope.rows,
        "perplexity": [{"drawn_by": row.drawn_by, "under": row.under, **row.estimates} for row in scope.perplexity],
        "spelling": scope.spellings
        and {
            **_level(scope.spellings.level),
            "lost": scope.spellings.lost,
            "respelled": scope.spellings.respelled,
        },
    }


def _level(level: Level) -> dict[str, Any]:
    return {
        "total": level.total,
        "hits1": _support(level.any_hit),
        "hits5": None if level.stable is None else _support(level.stable),
    }


def _support(support: Support) -> dict[str, Any]:
    keys = ("expected", "excess", "p", "p_strength", "sure")
    noise = {"shrunk": support.shrunk, "expanded": support.expanded}
    return {
        **support.estimates,
        "detection_limit": support.detection_limit,
        **{f"{key}_{name}": getattr(side, key) for name, side in noise.items() for key in keys},
    }


def _leash(leash: Leash, ks: Sequence[int]) -> dict[str, Any]:
    levels = {"unit": leash.units, "problem": leash.problem_level}
    return {
        **{
            name: {"cells": level.cells, **level.against._asdict(), "verdict": level.word}
            for name, level in levels.items()
        },
        "pass_at_k": [{"k": k, "value": value} for k, value in zip(ks, leash.pass_at_k, strict=True)],
    }


def _dynamics(table: Dynamics) -> dict[str, Any]:
    return {**asdict(table), **{metric: getattr(table, metric) for metric in METRICS}}


def _moved(moved: Moved) -> dict[str, Any]:
    examples = []
    for example in moved.examples:
        values = asdict(example)
        examples.append({"task": values.pop("task"), **values.pop("change")._asdict(), **values})
    return {"units": moved.units, "problems": moved.problems, "examples": examples}
