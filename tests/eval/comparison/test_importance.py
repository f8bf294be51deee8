"""Importance weights from scored pools: the estimator's numbers, shown in the report, and withheld by name."""

from pathlib import Path

import numpy as np
import pytest

from offleash.eval.comparison.compare import compare
from offleash.eval.pool.pool import Pool
from offleash.eval.pool.testing import make_problems, make_spec
from offleash.eval.report.record import json_report
from offleash.eval.report.text import text_report
from offleash.eval.scoring.score_folder import ScoreFolder, ScoreSpec

ANSWERS = ("a", "b", "c")
BASE = np.array([[0.3, 0.1, 0.06], [0.2, 0.1, 0.07], [0.1, 0.1, 0.1], [0.3, 0.2, 0.08]])
POLICY = np.array([[0.6, 0.09, 0.0004], [0.4, 0.02, 0.03], [0.3, 0.3, 0.003], [0.5, 0.2, 0.01]])
K = 64


def drawn_pool(path: Path, rates: np.ndarray, **changes) -> Pool:
    problems = make_problems(len(rates))
    spec = make_spec(problems, K, weights=path.name, **changes)
    pool = Pool.create(path, spec, problems, [ANSWERS] * len(problems))
    rng = np.random.default_rng(len(path.name))
    answers = [
        answer
        for row in rates
        for answer in rng.permutation(np.repeat([*ANSWERS, "wrong"], rng.multinomial(K, [*row, 1 - row.sum()])))
    ]
    pool.append(
        {
            "problem_id": [problem.id for problem in problems for _ in range(K)],
            "index": list(range(K)) * len(problems),
            "answer": answers,
            "correct": [answer != "wrong" for answer in answers],
            "status": ["ok"] * len(answers),
            "tokens": [3] * len(answers),
        }
    )
    return pool


def score(pool: Pool, weights: str, rates: np.ndarray, *, temperature=1.0, tokens=3, missing=False) -> None:
    spec = ScoreSpec(
        pool=pool.spec.fingerprint(), model="m", revision="", weights=weights, dtype="float32", template="t",
        temperature=temperature, end_token="",
    )  # fmt: skip
    answers = pool.read(["problem_id", "index", "answer"]).to_pylist()
    where = {(f"p{p}", answer): rates[p, a] for p in range(len(rates)) for a, answer in enumerate(ANSWERS)}
    rows = [float(np.log(where.get((row["problem_id"], row["answer"]), 0.1))) for row in answers]
    if missing:
        rows = [np.nan if row["answer"] == "a" else value for row, value in zip(answers, rows, strict=True)]
    ScoreFolder.open_or_create(pool, weights, spec).append(
        {
            "problem_id": [row["problem_id"] for row in answers],
            "index": [row["index"] for row in answers],
            "tokens": [tokens] * len(rows),
            "drawn_tokens": [3] * len(rows),
            "logprob": rows,
            "entropy": [0.5] * len(rows),
        }
    )


def scored_pair(folder: Path, spec: dict | None = None, policy: np.ndarray = POLICY, **how) -> tuple[Pool, Pool]:
    pools = [drawn_pool(folder / name, r, **(spec or {})) for name, r in (("base", BASE), ("policy", policy))]
    for pool in pools:
        score(pool, "base", BASE, **how)
        score(pool, "policy", policy, **how)
    return pools[0], pools[1]


def test_units_are_found_above_a_probability_that_no_count_reaches(tmp_path: Path) -> None:
    comparison = compare(*scored_pair(tmp_path), resamples=200)
    found = comparison.policies[0].importance
    truth = BASE > 1e-3, POLICY > 1e-3
    assert found is not None
    assert not found.withheld
    assert [found.estimates[name].value for name in ("preserved", "shrunk", "expanded", "out")] == [
        (truth[0] & truth[1]).sum(), (truth[0] & ~truth[1]).sum(), 0, 0,
    ]  # fmt: skip
    counted = comparison.policies[0].overall.units.any_hit.estimates
    assert counted["shrunk"].value > found.estimates["shrunk"].value  # a miss in 64 is not a probability below 1/1000
    assert 1 < found.effective_samples < 2 * K
    assert "by importance weights" in text_report(comparison)
    assert '"log_ratio_variance"' in json_report(comparison)


@pytest.mark.parametrize(
    ("spec", "how", "why"),
    [
        ({"top_p": 0.9}, {}, "top-p"),
        ({"temperature": 0.5}, {}, "temperature 0.5"),
        ({}, {"missing": True}, "could not be scored"),
        ({}, {"tokens": 4}, "other tokens"),
    ],
)
def test_what_cannot_be_computed_is_withheld_by_name(tmp_path: Path, spec: dict, how: dict, why: str) -> None:
    comparison = compare(*scored_pair(tmp_path, spec, **how), resamples=50)
    found = comparison.policies[0].importance
    assert found is not None
    assert why in found.withheld
    assert not found.estimates
    assert "withheld because" in text_report(comparison)


def test_models_that_are_far_apart_are_withheld_with_their_variance(tmp_path: Path) -> None:
    far = POLICY.copy()
    far[:, 1:] = 1e-9
    found = compare(*scored_pair(tmp_path, policy=far), resamples=50).policies[0].importance
    assert found is not None
    assert "too far apart" in found.withheld
    assert found.log_ratio_variance > 4


def test_without_scores_under_both_models_there_is_nothing_to_say(tmp_path: Path) -> None:
    base, policy = (drawn_pool(tmp_path / name, r) for name, r in (("base", BASE), ("policy", POLICY)))
    score(base, "base", BASE)
    score(policy, "policy", POLICY)
    assert compare(base, policy, resamples=50).policies[0].importance is None
