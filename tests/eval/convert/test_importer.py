"""Samples of other tools are imported completely or not at all, each format by its columns, and exported unchanged."""

import json
from pathlib import Path
from typing import Any

import pytest

from offleash.eval.comparison.sides import check_comparable
from offleash.eval.convert.exporter import export_samples
from offleash.eval.convert.importer import import_samples
from offleash.eval.errors import ConfigError, PoolError
from offleash.eval.pool.pool import FORMAT, Pool
from offleash.eval.pool.rows import SCHEMA, Sample
from offleash.eval.pool.testing import make_pool
from offleash.eval.problem import Problem
from offleash.eval.sampling import Plan
from offleash.eval.tasks import load_task
from offleash.train import cli
from tests.eval.convert.readers.test_lm_eval_samples import lm_row


def jsonl(path: Path, rows: list[Any]) -> Path:
    path.write_text(
        "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows), encoding="utf-8"
    )
    return path


def contents(pool: Pool) -> tuple[Any, ...]:
    names = [name for name in SCHEMA.names if name != "base_logprob"]
    return pool.read(names).to_pylist(), pool.problems, pool.answers


MESSAGES = [{"role": "user", "content": "What is 2 + 2?"}]
NATIVE: list[dict[str, Any]] = [
    {
        "problem_id": "p/1", "index": 0, "completion": "It is \\boxed{4}", "answer": "4", "correct": True, "tokens": 9,
        "logprob": -3.25, "entropy": 0.5, "extracted_by": "boxed", "prompt": MESSAGES, "gold": "4",
        "meta": {"domain": "math"},
    },
    {"problem_id": "p/1", "index": 2, "completion": "\ud83d\ude00 \u0000 é", "answer": None, "correct": False},
    {
        "problem_id": "p/2", "index": 0, "answer": "b*a", "spelling": "(b)*a", "correct": 1, "prompt": "a b:",
        "all_answers": ["a*b", "b*a"],
    },
    {"problem_id": "p/2", "index": 1, "answer": None, "correct": 0.0, "status": "truncated"},
]  # fmt: skip


def test_the_former_name_of_a_column_is_still_read(tmp_path: Path) -> None:
    former = [{"step" if key == "extracted_by" else key: value for key, value in row.items()} for row in NATIVE]
    pools = []
    for name, given in (("new", NATIVE), ("former", former)):
        import_samples(jsonl(tmp_path / f"{name}.jsonl", given), tmp_path / name)
        pools.append(contents(Pool.open(tmp_path / name)))
    assert pools[0] == pools[1]


def test_verdicts_are_taken_as_given(tmp_path: Path) -> None:
    made = import_samples(jsonl(tmp_path / "in.jsonl", NATIVE), tmp_path / "pool")
    assert (made.format, made.problems, made.samples, made.fewest, made.most, made.correct) == (
        "offleash",
        2,
        4,
        2,
        2,
        2,
    )
    pool = Pool.open(tmp_path / "pool")
    assert (pool.spec.k, pool.spec.task, pool.spec.temperature) == (3, "imported", -1.0)
    rows, problems, answers = contents(pool)
    assert [(row["problem_id"], row["index"], row["status"]) for row in rows] == [
        ("p/1", 0, "ok"),
        ("p/1", 2, "no_answer"),
        ("p/2", 0, "ok"),
        ("p/2", 1, "truncated"),
    ]
    assert rows[0]["logprob"] == -3.25
    assert rows[1]["completion"] == "\U0001f600 \x00 é"
    assert (problems[0].prompt, problems[0].gold, problems[0].meta) == (MESSAGES, "4", {"domain": "math"})
    assert answers == [None, ("a*b", "b*a")]
    hits = pool.hits()
    assert hits.correct_p.tolist() == [1, 1]
    assert hits.unit_hits.tolist() == [1, 0, 1]


@pytest.mark.parametrize("target", ["out.jsonl", "out.parquet", "out"])
def test_import_export_import_is_a_round_trip(target: str, tmp_path: Path) -> None:
    import_samples(jsonl(tmp_path / "in.jsonl", NATIVE), tmp_path / "first")
    first = Pool.open(tmp_path / "first")
    assert export_samples(first, tmp_path / target) == 4
    import_samples(tmp_path / target, tmp_path / "second")
    assert contents(Pool.open(tmp_path / "second")) == contents(first)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["first", "in.jsonl", "second", target])


def test_the_exported_folder_is_a_dataset(tmp_path: Path) -> None:
    from datasets import load_from_disk

    import_samples(jsonl(tmp_path / "in.jsonl", NATIVE), tmp_path / "pool")
    export_samples(Pool.open(tmp_path / "pool"), tmp_path / "set", prompts=False)
    data = load_from_disk(str(tmp_path / "set"))
    assert len(data) == 4
    assert "prompt" not in data.column_names
    assert data[2]["all_answers"] == ["a*b", "b*a"]
    assert json.loads((tmp_path / "set" / "pool.json").read_text())["format"] == FORMAT
    with pytest.raises(ConfigError, match="set"):
        export_samples(Pool.open(tmp_path / "pool"), tmp_path / "set")
    with pytest.raises(ConfigError, match=r"set\.csv"):
        export_samples(Pool.open(tmp_path / "pool"), tmp_path / "set.csv")


def test_index_is_counted_per_problem_where_it_is_not_given(tmp_path: Path) -> None:
    rows = [{"problem_id": name, "answer": "1", "correct": True} for name in ("a", "b", "a", "a")]
    made = import_samples(jsonl(tmp_path / "in.jsonl", rows), tmp_path / "pool")
    assert (made.fewest, made.most) == (1, 3)
    assert [row["index"] for row in contents(Pool.open(tmp_path / "pool"))[0]] == [0, 1, 2, 0]


GARBAGE = [
    ("{incomplete", "line 2 .*JSON"),
    ("[1]", "line 2 .*object"),
    ('"text"', "line 2 .*object"),
    ({"completion": "x", "correct": True}, "line 2 has no problem_id"),
    ({"problem_id": "", "correct": True}, "line 2 problem_id is missing"),
    ({"problem_id": "a"}, "line 2 has neither completion nor answer nor correct"),
    ({"problem_id": "a", "answer": "1"}, r"line 2 has no verdict \(correct\)"),
    ({"problem_id": "a", "answer": "1", "correct": "yes"}, "line 2 correct must be true or false, got 'yes'"),
    ({"problem_id": "a", "answer": "1", "correct": 0.5}, "line 2 correct must be true or false"),
    ({"problem_id": "a", "answer": "1", "correct": True, "index": -1}, "line 2 index .*-1"),
    ({"problem_id": "a", "answer": "1", "correct": True, "index": 1.5}, "line 2 index .*1.5"),
    ({"problem_id": "a", "answer": "1", "correct": True, "index": 0}, "line 1 .*index"),
    ({"problem_id": "a", "answer": ["1"], "correct": True}, "line 2 answer must be text"),
    ({"problem_id": "a", "completion": {"x": 1}, "correct": True}, "line 2 completion must be text"),
    ({"problem_id": "a", "answer": "1", "correct": True, "status": "fine"}, "line 2 status must be one of ok"),
    ({"problem_id": "a", "answer": "1", "correct": True, "tokens": "9"}, "line 2 tokens .*'9'"),
    ({"problem_id": "a", "answer": "1", "correct": True, "logprob": "x"}, "line 2 logprob must be a number"),
    ({"problem_id": "a", "answer": "1", "correct": True, "gold": "2"}, "line 2 .*'a'.* gold"),
    ({"problem_id": "a", "answer": "1", "correct": True, "meta": "{x"}, "line 2 meta .*JSON .Expecting"),
    ({"problem_id": "a", "answer": "1", "correct": True, "meta": {"x": 1}}, "line 2 .*'a'.* meta"),
    (
        {"problem_id": "b", "answer": "1", "correct": True, "all_answers": "12"},
        "line 2 all_answers must be a list .*'12'",
    ),
    ({"problem_id": "b", "answer": "1", "correct": True, "all_answers": 12}, "line 2 all_answers must be a list .*12"),
    (
        {"problem_id": "b", "answer": "1", "correct": True, "all_answers": ["1", None]},
        "line 2 all_answers must be a list",
    ),
    ({"problem_id": "b", "answer": "1", "correct": True, "all_answers": [["1"]]}, "line 2 each of all_answers must be"),
    ({"problem_id": "b", "answer": "1", "correct": True, "all_answers": ["1", 1]}, "line 2 all_answers must list each"),
    (
        {"problem_id": "b", "answer": "3", "correct": True, "all_answers": ["1", "2"]},
        "line 2 is correct with answer '3'",
    ),
    (
        {"problem_id": "b", "completion": "1", "correct": True, "all_answers": ["1"]},
        "line 2 is correct with answer None",
    ),
    ({"problem_id": "a", "answer": "1", "correct": True, "all_answers": ["1"]}, "line 2 .*'a'.* all_answers"),
    ({"problem_id": "a", "answer": "1", "correct": True, "status": "error"}, "line 2 is correct with status 'error'"),
    (
        {"problem_id": "a", "answer": "1", "correct": True, "status": "timeout"},
        "line 2 is correct with status 'timeout'",
    ),
    (
        {"problem_id": "a", "answer": "1", "correct": True, "logprob": 5.0},
        "line 2 logprob must be .*at most 0.* got 5.0",
    ),
    (
        {"problem_id": "a", "answer": "1", "correct": True, "logprob": -float("inf")},
        "line 2 logprob must be .*got -inf",
    ),
    ({"problem_id": "a", "answer": "1", "correct": True, "logprob": float("nan")}, "line 2 logprob must be .*got nan"),
    ({"problem_id": "a", "answer": "1", "correct": True, "base_logprob": 5.0}, "line 2 base_logprob must be .*got 5.0"),
    ({"problem_id": "a", "answer": "1", "correct": True, "index": float("nan")}, "line 2 index "),
    ({"problem_id": "a", "answer": "1", "correct": True, "index": float("inf")}, "line 2 index "),
    ({"problem_id": "a", "answer": "1", "correct": True, "entropy": 10**400}, r"line 2 cannot be read .*OverflowError"),
    ({"problem_id": "\ud800", "answer": "1", "correct": True}, "line 2 problem_id holds a lone surrogate"),
    ({"problem_id": "b", "answer": "1", "correct": True, "gold": "\ud800"}, "line 2 gold holds a lone surrogate"),
    (b"\xff\xfe", "line 2 .*JSON"),
]


@pytest.mark.parametrize(("bad", "message"), GARBAGE)
def test_bad_lines_are_named_and_nothing_is_written(bad: Any, message: str, tmp_path: Path) -> None:
    first = json.dumps({"problem_id": "a", "answer": "1", "correct": True, "gold": "1"}).encode()
    second = bad if isinstance(bad, bytes) else (bad if isinstance(bad, str) else json.dumps(bad)).encode()
    (tmp_path / "in.jsonl").write_bytes(first + b"\n" + second + b"\n")
    with pytest.raises(ConfigError, match=message):
        import_samples(tmp_path / "in.jsonl", tmp_path / "pool")
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]


def test_what_lines_of_one_problem_say_may_be_left_out_or_said_again(tmp_path: Path) -> None:
    said = {"problem_id": "a", "correct": True, "logprob": 1e-6, "meta": {"x": float("nan")}, "all_answers": ["1", "2"]}
    rows = [
        {**said, "answer": "1"},
        {**said, "answer": "2", "all_answers": ["2", "1"]},
        {"problem_id": "a", "answer": "3", "correct": False},
    ]
    import_samples(jsonl(tmp_path / "in.jsonl", rows), tmp_path / "pool")
    assert Pool.open(tmp_path / "pool").hits().unit_hits.tolist() == [1, 1]
    late = {"problem_id": "a", "answer": "3", "correct": True}
    with pytest.raises(ConfigError, match="line 4 is correct with answer '3'"):
        import_samples(jsonl(tmp_path / "in.jsonl", [*rows, late]), tmp_path / "other")
    with pytest.raises(ConfigError, match=r"line 4 .*'a'.* all_answers"):
        import_samples(jsonl(tmp_path / "in.jsonl", [*rows, {**late, "all_answers": ["3"]}]), tmp_path / "other")


def test_repeated_draws_and_many_bad_lines(tmp_path: Path) -> None:
    rows = [{"problem_id": "a", "index": i, "answer": "1", "correct": True} for i in (0, 1, 0)]
    with pytest.raises(ConfigError, match="line 3 repeats problem 'a', index 0 of line 1"):
        import_samples(jsonl(tmp_path / "in.jsonl", rows), tmp_path / "pool")
    with pytest.raises(ConfigError, match=r"25 of 26 lines .*15 more"):
        import_samples(jsonl(tmp_path / "in.jsonl", [rows[0], *(["{"] * 25)]), tmp_path / "pool")


def test_files_and_folders_that_cannot_be_used(tmp_path: Path) -> None:
    good = jsonl(tmp_path / "in.jsonl", NATIVE)
    with pytest.raises(ConfigError, match="cannot read"):
        import_samples(tmp_path / "none.jsonl", tmp_path / "pool")
    with pytest.raises(ConfigError, match=r"empty\.jsonl"):
        import_samples(jsonl(tmp_path / "empty.jsonl", []), tmp_path / "pool")
    with pytest.raises(ConfigError, match=r"strange\.jsonl.* text.*lm-eval"):
        import_samples(jsonl(tmp_path / "strange.jsonl", [{"text": "x"}]), tmp_path / "pool")
    import_samples(good, tmp_path / "pool")
    with pytest.raises(PoolError, match="pool"):
        import_samples(good, tmp_path / "pool")
    (tmp_path / "file").write_text("")
    with pytest.raises(PoolError, match="file"):
        import_samples(good, tmp_path / "file" / "pool")
    with pytest.raises(PoolError, match="nnn"):
        import_samples(good, tmp_path / ("n" * 300))


def gsm8k(tmp_path: Path) -> Any:
    rows = [{"question": f"Question {i}?", "answer": f"... #### {i}"} for i in range(3)]
    return load_task("gsm8k", path=jsonl(tmp_path / "gsm8k.jsonl", rows))


def test_a_task_judges_again_and_matches_by_id_or_question(tmp_path: Path) -> None:
    task = gsm8k(tmp_path)
    rows = [lm_row(2, ["I say 2", "I say 5", "Nothing"], [], 0.5), lm_row(0, ["0", "1", "0"], [], 0.5)]
    made = import_samples(jsonl(tmp_path / "in.jsonl", rows), tmp_path / "pool", task=task)
    assert (made.problems, made.samples, made.correct) == (2, 6, 3)
    pool = Pool.open(tmp_path / "pool")
    assert [p.id for p in pool.problems] == [task.problems[0].id, task.problems[2].id]
    assert pool.spec.task_version == task.version
    assert pool.read(["status"]).column("status").to_pylist() == ["ok", "ok", "ok", "ok", "ok", "no_answer"]
    native = [{"problem_id": task.problems[1].id, "completion": "It is 1"}]
    assert import_samples(jsonl(tmp_path / "own.jsonl", native), tmp_path / "own", task=task).correct == 1
    strange = jsonl(tmp_path / "strange.jsonl", [{"problem_id": "x", "completion": "1"}])
    with pytest.raises(ConfigError, match="line 1 problem 'x' is not one of task 'gsm8k'"):
        import_samples(strange, tmp_path / "no", task=task)
    answer = jsonl(tmp_path / "answer.jsonl", [{"problem_id": task.problems[1].id, "answer": "1"}])
    with pytest.raises(ConfigError, match=r"line 1 .*completion"):
        import_samples(answer, tmp_path / "no", task=task)


def test_what_is_known_of_the_sampling_is_kept(tmp_path: Path) -> None:
    source = {"model": "my/model", "sampling": {"temperature": 0.6, "top_k": 20}}
    import_samples(jsonl(tmp_path / "in.jsonl", NATIVE), tmp_path / "pool", **source)
    spec = Pool.open(tmp_path / "pool").spec
    assert (spec.model, spec.temperature, spec.top_k, spec.top_p) == ("my/model", 0.6, 20, -1.0)


def test_an_exported_dataset_keeps_what_its_pool_was_drawn_with(tmp_path: Path) -> None:
    problems = [Problem(name, f"{name}?", "1") for name in ("b", "a")]
    settings = {"task_version": "2", "model": "my/model", "revision": "main", "temperature": 0.6, "top_p": 0.9}
    origin = make_pool(
        tmp_path / "origin", None, 4, problems, **settings, stop=("end",), seed=7, plan=Plan(successes=1), engine="vllm"
    )
    spec = origin.spec
    for name in ("a", "b"):  # not in the order of the problems
        origin.append([Sample(name, 0, "1", True, "ok")])
    export_samples(origin, tmp_path / "set")
    import_samples(tmp_path / "set", tmp_path / "again")
    again = Pool.open(tmp_path / "again")
    assert (again.spec.differences(spec), again.spec.model, again.problems) == ([], "my/model", problems)
    assert check_comparable(origin, again) == [
        "again has the base's weights, sampling and seed: its samples may be the same"
    ]
    import_samples(tmp_path / "set", tmp_path / "told", model="other", sampling={"temperature": 1.0, "top_k": 5.0})
    told = Pool.open(tmp_path / "told").spec
    assert told.model == "other"
    assert told.differences(spec) == ["temperature: 1.0 -> 0.6", "top_k: 5 -> 0"]
    (tmp_path / "set" / "pool.json").write_text("{incomplete")
    with pytest.raises(PoolError, match=r"pool\.json cannot be read .*export the pool again"):
        import_samples(tmp_path / "set", tmp_path / "no")


def test_a_task_that_judges_an_exported_dataset_leaves_its_sampling_known(tmp_path: Path) -> None:
    task = gsm8k(tmp_path)
    native = [{"problem_id": task.problems[1].id, "completion": "It is 1", "correct": False}]
    source = {"model": "my/model", "sampling": {"temperature": 0.6}}
    import_samples(jsonl(tmp_path / "own.jsonl", native), tmp_path / "own", **source)
    export_samples(Pool.open(tmp_path / "own"), tmp_path / "set")
    assert import_samples(tmp_path / "set", tmp_path / "judged", task=task).correct == 1
    spec = Pool.open(tmp_path / "judged").spec
    assert (spec.task, spec.task_version, spec.temperature, spec.model) == ("gsm8k", task.version, 0.6, "my/model")


def test_the_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{**row, "extra": 1} for row in NATIVE]
    jsonl(tmp_path / "in.jsonl", rows)
    pool = str(tmp_path / "pool")
    assert cli.main(["import", str(tmp_path / "in.jsonl"), "--pool", pool, "--temperature", "1.0"]) == 0
    said = capsys.readouterr().out
    assert f"detected offleash samples in {tmp_path / 'in.jsonl'}; verdicts as given" in said
    assert "2 problems, 4 samples (2 each), 50.0% correct -> " in said
    assert "columns not used: extra" in said
    assert cli.main(["export", pool, "--to", str(tmp_path / "out.jsonl")]) == 0
    assert "4 samples" in capsys.readouterr().out
    assert cli.main(["import", str(tmp_path / "in.jsonl"), "--pool", pool]) == 2
    assert "exists and is not empty" in capsys.readouterr().err
    assert cli.main(["import", str(tmp_path / "in.jsonl"), "--pool", pool, "--path", "x"]) == 2
    assert "need --task" in capsys.readouterr().err
    again = ["import", str(tmp_path / "in.jsonl"), "--pool", str(tmp_path / "x"), "--task", "gsm8k", "--task-args", "["]
    assert cli.main(again) == 2
    assert "--task-args" in capsys.readouterr().err
    assert cli.main(["tasks"]) == 0
    assert "HuggingFaceH4/MATH-500" in capsys.readouterr().out
    gsm8k(tmp_path)
    assert cli.main(["tasks", "gsm8k", "--path", str(tmp_path / "gsm8k.jsonl"), "--show", "1"]) == 0
    assert "Question 0?" in capsys.readouterr().out
    assert cli.main(["tasks", "gsm8k", "--path", str(tmp_path / "gsm8k.jsonl"), "--check"]) == 0
    assert "3 of 3 gold answers verify" in capsys.readouterr().out


LIKE_MESSAGES = [
    '[{"', '[{"a": 1}]', '[{"role": "user", "content": "x"}]', '"[{\\"role\\": \\"user\\"}]"', '"quoted"',
    json.dumps(json.dumps([{"role": "user"}])), '[{"' * 100_000, "[]", "null", '"',
]  # fmt: skip


@pytest.mark.parametrize("target", ["out.jsonl", "out.parquet", "out"])
def test_a_text_prompt_that_looks_like_messages_stays_text(target: str, tmp_path: Path) -> None:
    prompts: list[Any] = [*LIKE_MESSAGES, MESSAGES, [{"role": "user", "content": '[{"'}]]
    problems = [Problem(f"p{i}", prompt, "1") for i, prompt in enumerate(prompts)]
    pool = make_pool(tmp_path / "pool", hits=[1] * len(problems), k=2, problems=problems)
    export_samples(pool, tmp_path / target)
    import_samples(tmp_path / target, tmp_path / "again")
    assert [problem.prompt for problem in Pool.open(tmp_path / "again").problems] == prompts


def test_half_a_surrogate_pair_that_json_spells_out_is_exported(tmp_path: Path) -> None:
    problems = [Problem("a", '[{"role": "user", "content": "\\ud800"}]', "1", {"half": "\ud800"})]
    pool = make_pool(tmp_path / "pool", hits=[1], k=2, problems=problems)
    assert export_samples(pool, tmp_path / "out.jsonl") == 2
    row = json.loads((tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines()[0])
    assert row["meta"] == {"half": "\ud800"}


def test_an_index_that_would_make_a_pool_of_gigabytes_is_named(tmp_path: Path) -> None:
    for index in (2_000_000_000, 10_000_000):
        source = jsonl(tmp_path / "in.jsonl", [{"problem_id": "a", "index": i, "correct": True} for i in (0, index)])
        with pytest.raises(ConfigError, match=f"line 2 has index {index:,}"):
            import_samples(source, tmp_path / "pool")
    sparse = [{"problem_id": str(i), "index": i * 1000, "correct": True} for i in range(1000)]
    with pytest.raises(ConfigError, match="line 1000 has index 999,000"):
        import_samples(jsonl(tmp_path / "in.jsonl", sparse), tmp_path / "pool")
    import_samples(jsonl(tmp_path / "in.jsonl", sparse[:50]), tmp_path / "pool")
    assert Pool.open(tmp_path / "pool").spec.k == 49_001


def test_nan_is_a_missing_value_and_no_text(tmp_path: Path) -> None:
    rows = [
        {"problem_id": "p", "answer": float("nan"), "correct": False},
        {"problem_id": "p", "answer": "4", "correct": True},
    ]
    import_samples(jsonl(tmp_path / "in.jsonl", rows), tmp_path / "pool")
    assert [row["answer"] for row in contents(Pool.open(tmp_path / "pool"))[0]] == [None, "4"]
    for bad in (float("nan"), float("inf")):
        with pytest.raises(ConfigError, match="problem_id"):
            import_samples(jsonl(tmp_path / "bad.jsonl", [{"problem_id": bad, "correct": True}]), tmp_path / "none")
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--threshold", "nan"], "threshold must be a finite number"),
        (["--top-k", "nan"], "top_k must be a whole number"),
        (["--top-k", "1.5"], "top_k must be a whole number"),
        (["--max-new-tokens", "1e400"], "max_new_tokens must be a whole number"),
        (["--temperature", "inf"], "temperature must be a number"),
    ],
)
def test_numbers_that_are_none_are_refused(words: list[str], message: str, tmp_path: Path, capsys: Any) -> None:
    file = jsonl(tmp_path / "in.jsonl", NATIVE)
    assert cli.main(["import", str(file), "--pool", str(tmp_path / "pool"), *words]) != 0
    assert message in capsys.readouterr().err
    assert not (tmp_path / "pool").exists()


@pytest.mark.parametrize("target", ["out.jsonl", "out.parquet", "folder"])
def test_what_was_truncated_stays_so(target: str, tmp_path: Path) -> None:
    rows = [{"problem_id": "p", "answer": "1", "correct": False, "truncated": cut} for cut in (True, False)]
    import_samples(jsonl(tmp_path / "in.jsonl", rows), tmp_path / "pool")
    export_samples(Pool.open(tmp_path / "pool"), tmp_path / target)
    import_samples(tmp_path / target, tmp_path / "again")
    for name in ("pool", "again"):
        assert [row["truncated"] for row in contents(Pool.open(tmp_path / name))[0]] == [True, False]


@pytest.mark.parametrize("target", ["out.jsonl", "out.parquet", "folder"])
def test_a_prompt_that_is_not_utf8_is_exported_and_comes_back(target: str, tmp_path: Path) -> None:
    row = {"problem_id": "p", "answer": "1", "correct": True, "prompt": "x\ud800"}
    import_samples(jsonl(tmp_path / "in.jsonl", [row]), tmp_path / "pool")
    export_samples(Pool.open(tmp_path / "pool"), tmp_path / target)
    import_samples(tmp_path / target, tmp_path / "again")
    assert Pool.open(tmp_path / "again").problems[0].prompt == "x\ud800"
