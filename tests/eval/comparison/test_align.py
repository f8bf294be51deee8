"""What cannot be compared is refused by name, and what may mislead is said."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from offleash.eval.comparison.compare import compare
from offleash.eval.errors import ConfigError, PoolError
from offleash.eval.pool.pool import Pool
from offleash.eval.pool.rows import Sample
from offleash.eval.pool.testing import make_pool, make_spec
from offleash.eval.stats.entropy import answer_entropy
from tests.eval.comparison.random_pools import compared, make_problems, one


@pytest.mark.parametrize(
    ("field", "value", "forcible"),
    [
        ("task", "products", False),
        ("task_version", "2", False),
        ("template", "u", True),
        ("temperature", 0.6, True),
        ("top_p", 0.95, True),
        ("top_k", 20, True),
        ("max_new_tokens", 9, True),
        ("stop", ("x",), True),
    ],
)
def test_other_settings_are_refused_by_name(tmp_path: Path, field: str, value: Any, forcible: bool) -> None:
    problems = make_problems(2)
    make_pool(tmp_path / "b", [1, 0], 2, problems)
    make_pool(tmp_path / "p", [1, 0], 2, problems, **{field: value})
    with pytest.raises(PoolError, match=f"{field}: "):
        compared(tmp_path / "b", tmp_path / "p")
    if forcible:
        (warning,) = compared(tmp_path / "b", tmp_path / "p", force=True).warnings
        assert warning.startswith(f"FORCED although {field}: ")
        assert repr(value) in warning
    else:
        with pytest.raises(PoolError, match=f"{field}: "):
            compared(tmp_path / "b", tmp_path / "p", force=True)


def test_pools_are_compared_on_the_problems_that_both_have(tmp_path: Path) -> None:
    """A base pool that another run made grow is still the base of this one."""
    make_pool(tmp_path / "b", [1, 0, 3, 2], 4, make_problems(4))
    make_pool(tmp_path / "p", [1, 3], 4, make_problems(4)[2:0:-1])
    make_pool(tmp_path / "b-alone", [0, 3], 4, make_problems(4)[1:3])
    make_pool(tmp_path / "p-alone", [3, 1], 4, make_problems(4)[1:3], weights="v")
    found = compared(tmp_path / "b", tmp_path / "p")
    alone = compared(tmp_path / "b-alone", tmp_path / "p-alone")
    assert found.warnings == ("2 of the 4 problems of b are left out: the policy has no samples of them",)
    assert found.policies[0].overall.problems == 2
    assert found.policies[0].overall.curves == alone.policies[0].overall.curves
    assert (found.base.draws, alone.base.draws) == (8, 8)


def test_other_problems_or_other_listed_answers_are_refused(tmp_path: Path) -> None:
    make_pool(tmp_path / "b", [1, 0], 2, make_problems(2))
    make_pool(tmp_path / "p", [1], 2, [replace(make_problems(2)[1], gold="9")])
    with pytest.raises(PoolError, match="problems: 'p1'"):
        compared(tmp_path / "b", tmp_path / "p", force=True)
    make_pool(tmp_path / "r", [1], 2, make_problems(3)[2:])
    with pytest.raises(PoolError, match="problems: "):
        compared(tmp_path / "b", tmp_path / "r", force=True)
    problems = make_problems(2)
    Pool.create(tmp_path / "q", make_spec(problems, 2, weights="q"), problems, [("0",), ("2",)])
    with pytest.raises(PoolError, match="correct answers listed"):
        compared(tmp_path / "b", tmp_path / "q", force=True)


def test_weights_seed_and_budget_may_differ_and_engines_are_noted(tmp_path: Path) -> None:
    problems = make_problems(2)
    make_pool(tmp_path / "b", [1, 0], 2, problems)
    make_pool(tmp_path / "p", [1, 0], 3, problems, weights="v", seed=9)
    assert compared(tmp_path / "b", tmp_path / "p").warnings == ()
    make_pool(tmp_path / "q", [1, 0], 2, problems, engine="vllm")
    assert compared(tmp_path / "b", tmp_path / "q").warnings == ("engine: 'transformers' -> 'vllm' (q)",)
    make_pool(tmp_path / "r", [1, 0], 2, problems, weights=str(tmp_path / "b"))
    assert "may be the same" in compared(tmp_path / "b", tmp_path / "r").warnings[0]


def test_what_the_verifier_could_not_judge_is_said(tmp_path: Path) -> None:
    problems = make_problems(1)
    for name in ("b", "p"):
        pool = Pool.create(tmp_path / name, make_spec(problems, 4, weights=name), problems)
        statuses = ["ok", "timeout", "error", "ok"] if name == "p" else ["ok"] * 4
        pool.append([Sample("p0", i, "0", status == "ok", status) for i, status in enumerate(statuses)])
    comparison = compared(tmp_path / "b", tmp_path / "p")
    assert "p, sums: 1 samples (25.00%) could not be judged" in comparison.warnings[0]
    assert one(comparison).overall.rows["timeout"].policy.value == 0.25


def test_a_sample_without_a_verdict_is_not_a_sample_without_an_answer(tmp_path: Path) -> None:
    """Five judged draws, two of them silent, and three lost to the verifier: entropies and votes are of the five."""
    problems = make_problems(1)
    judged = [("0", True, "ok")] * 2 + [("1", False, "ok")] + [(None, False, "no_answer"), (None, False, "truncated")]
    lost = [(None, False, "timeout"), (None, False, "error"), ("0", False, "error")]
    for name in ("b", "p"):
        pool = Pool.create(tmp_path / name, make_spec(problems, 8, weights=name), problems)
        pool.append([Sample("p0", i, *drawn) for i, drawn in enumerate(judged + lost)])
    rows = one(compared(tmp_path / "b", tmp_path / "p")).overall.rows
    assert rows["answer_entropy"].base.value == pytest.approx(answer_entropy([2, 1, 2]))
    assert rows["majority"].base.value == 1.0
    assert rows["error"].base.value == 2 / 8
    assert rows["no_answer"].base.value == 1 / 8


def test_two_correct_answers_that_differ_are_counted_in_pairs(tmp_path: Path) -> None:
    problems, listed = make_problems(2), [("0", "00"), ("2",)]
    for name in ("b", "p"):
        pool = Pool.create(tmp_path / name, make_spec(problems, 4, weights=name), problems, listed)
        second = ["0", "0", "00"] if name == "b" else ["0", "0", "0"]
        pool.append([Sample("p0", i, answer, answer != "x", "ok") for i, answer in enumerate([*second, "x"])])
        pool.append([Sample("p1", i, "2" if i == 0 else "x", i == 0, "ok") for i in range(4)])
    contrast = one(compared(tmp_path / "b", tmp_path / "p")).overall.rows["pcmd"]
    assert (contrast.base.value, contrast.base.n) == (pytest.approx(2 / 3), 1)  # p1 has one correct draw
    assert contrast.policy.value == 0


def test_pools_without_a_draw_in_common_are_refused(tmp_path: Path) -> None:
    problems = make_problems(1)
    make_pool(tmp_path / "b", [1], 2, problems)
    Pool.create(tmp_path / "p", make_spec(problems, 2, weights="p"), problems)
    with pytest.raises(PoolError, match=r"b and .*p"):
        compared(tmp_path / "b", tmp_path / "p")
    with pytest.raises(ConfigError, match="policy"):
        compare(tmp_path / "b", [])
