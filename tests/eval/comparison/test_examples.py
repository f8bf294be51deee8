"""Answers that were lost and gained come with something to read."""

from pathlib import Path

from offleash.eval.pool.pool import Pool
from offleash.eval.pool.rows import Sample
from offleash.eval.pool.testing import make_pool, make_spec
from offleash.eval.problem import cut_text
from tests.eval.comparison.random_pools import cells, compared, make_problems, one


def test_examples_show_a_hit_and_the_first_draw_of_the_other_side(tmp_path: Path) -> None:
    problems = make_problems(5)
    hits = {"b": [0, 2, 6, 1, 3], "p": [4, 2, 0, 0, 3]}
    for name, of_side in hits.items():
        pool = Pool.create(tmp_path / name, make_spec(problems, 8, weights=name), problems)
        for start in (0, 4):  # two parts, hits last
            pool.append(
                [
                    Sample(f"p{p}", i, "a", i >= 8 - of_side[p], "ok", completion=f"{name} p{p} draw {i}")
                    for p in range(5)
                    for i in range(start, start + 4)
                ]
            )
    result = one(compared(tmp_path / "b", tmp_path / "p"))
    assert [e.change.problem_id for e in result.lost.examples] == ["p2", "p3"]
    assert (result.lost.units, result.lost.problems) == (2, 2)
    first, second = result.lost.examples
    assert (first.base_text, first.policy_text) == ("b p2 draw 2", "p p2 draw 0")
    assert (second.base_text, second.policy_text) == ("b p3 draw 7", "p p3 draw 0")
    assert (second.change.base_hits, second.change.base_n, second.change.policy_hits) == (1, 8, 0)
    (gained,) = result.gained.examples
    assert (gained.base_text, gained.policy_text, gained.gold) == ("b p0 draw 0", "p p0 draw 4", "0")
    fewer = one(compared(tmp_path / "b", tmp_path / "p", examples=1))
    assert (fewer.lost.units, len(fewer.lost.examples)) == (2, 1)


def test_texts_are_cut_in_the_middle() -> None:
    text = cut_text("a" * 3000 + "z" * 3000, 100)
    assert text.startswith("a" * 50 + "\n[... 5900 characters left out ...]\n")
    assert text.endswith("z" * 50)


def test_domains_come_from_the_metadata(tmp_path: Path) -> None:
    problems = make_problems(6, ["algebra", "logic"])
    make_pool(tmp_path / "b", [1, 1, 1, 1, 0, 0], 2, problems)
    make_pool(tmp_path / "p", [1, 0, 1, 0, 1, 0], 2, problems)
    result = one(compared(tmp_path / "b", tmp_path / "p"))
    assert {scope.name: cells(scope.units.any_hit) for scope in result.domains} == {
        "algebra": (2, 1, 0, 0),
        "logic": (0, 0, 2, 1),
    }
