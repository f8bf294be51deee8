"""A cell shows both sides' completions by answer, whatever they hold."""

from offleash.eval.browse.cell import PAGE_LIMIT, TEXT_LIMIT, cell
from offleash.eval.pool.rows import Sample
from offleash.eval.pool.testing import make_pool, make_problems

HOSTILE = "<script>alert(1)</script>\x00\u202e"


def pool(path, samples, k=4):
    problems = make_problems(1)
    made = make_pool(path, problems=problems, k=k)
    made.append([Sample("p0", i, *sample[:3], completion=sample[3]) for i, sample in enumerate(samples)])
    return problems[0], made


def test_answers_are_grouped_and_those_of_one_side_alone_are_said(tmp_path):
    problem, base = pool(tmp_path / "b", [("0", True, "ok", "is 0"), ("0", True, "ok", "0!"), ("7", False, "ok", "7")])
    _, policy = pool(tmp_path / "p", [("0", True, "ok", "0"), (None, False, "no_answer", HOSTILE)])
    found = cell(problem, base, policy, 4)
    assert (found["base"]["n"], found["base"]["correct"], found["policy"]["correct"]) == (3, 2, 1)
    first, second = found["base"]["groups"]
    assert (first["answer"], first["count"], first["correct"], first["only_here"]) == ("0", 2, True, False)
    assert (second["answer"], second["only_here"]) == ("7", True)
    assert [sample["text"] for sample in first["samples"]] == ["is 0", "0!"]
    silent = found["policy"]["groups"][1]
    assert (silent["answer"], silent["status"], silent["only_here"]) == (None, "no_answer", False)
    assert silent["samples"][0]["text"] == HOSTILE


def test_only_the_run_s_own_samples_of_the_base_are_shown(tmp_path):
    problem, base = pool(tmp_path / "b", [("0", True, "ok", "0"), ("7", False, "ok", "7")])
    assert cell(problem, base, base, 1)["base"]["n"] == 1


def test_long_completions_are_cut_and_many_of_them_counted(tmp_path):
    long = "x" * (TEXT_LIMIT + 1000)
    count = PAGE_LIMIT // TEXT_LIMIT + 10
    problem, base = pool(tmp_path / "b", [("0", True, "ok", long)] * count, k=count)
    (group,) = cell(problem, base, base, count)["base"]["groups"]
    assert group["count"] == count
    assert 0 < len(group["samples"]) < count
    assert all(len(sample["text"]) < TEXT_LIMIT + 100 for sample in group["samples"])
