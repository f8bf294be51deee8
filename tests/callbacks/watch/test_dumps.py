"""Files of samples that another trainer writes, step by step."""

import json

import pytest

from offleash.callbacks.summary import read_record
from offleash.callbacks.watch.dumps import DumpWatcher, find_dumps, is_written
from offleash.callbacks.watch.settings import WatchSettings
from offleash.eval.errors import ConfigError, PoolError
from offleash.eval.pool.pool import Pool
from offleash.eval.pool.testing import make_pool


def dump(path, hits, k=4):
    """k samples of each problem, the first so many of them correct."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [
        {"problem_id": f"p{p}", "index": i, "answer": "yes" if i < hit else "no", "correct": i < hit, "prompt": f"{p}?"}
        for p, hit in enumerate(hits)
        for i in range(k)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def watch(folder, out=None, base=None, **how):
    watcher = DumpWatcher(folder, out or folder, WatchSettings(once=True, poll=0.01, **how), None, base)
    watcher.run()
    return watcher


def test_steps_are_found_by_name_or_folder_and_own_files_are_not_dumps(tmp_path):
    for name in ("20.jsonl", "rollouts/step_5/eval/traces.jsonl", "completions/completions_00003.parquet"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    for name in ("pools/step-000007/samples-1.parquet", "notes.txt", "summary.jsonl", ".8.jsonl"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert [one.step for one in find_dumps(tmp_path)] == [3, 5, 20]


def test_a_file_is_written_once_it_ends_as_one_does(tmp_path):
    (path := tmp_path / "5.jsonl").write_text('{"a": 1}\n{"b"')
    assert not is_written(path)
    path.write_text('{"a": 1}\n')
    assert is_written(path)


def test_each_dump_is_a_pool_measured_against_the_first_and_a_second_call_finds_nothing_to_do(
    tmp_path, read_scalars, capsys
):
    dump(tmp_path / "0.jsonl", [4, 2, 0])
    dump(tmp_path / "10.jsonl", [4, 0, 1])
    dump(tmp_path / "20.jsonl", [4, 0, 0])
    watch(tmp_path)
    record = read_record(tmp_path)
    assert sorted(record["steps"]) == [10, 20]
    assert record["steps"][10]["pass_at_k/1"] == pytest.approx(5 / 12)
    assert record["base"]["pass_at_k/1"] == pytest.approx(6 / 12)
    moved = [[record["steps"][s][f"support/problem/{part}"] for part in ("shrunk", "expanded")] for s in (10, 20)]
    assert moved == [[1, 1], [1, 0]]
    assert [step for step, _ in read_scalars(tmp_path / "tensorboard")["pass_at_k/1"]] == [10, 20]
    assert Pool.open(tmp_path / "pools" / "step-000010").hits().correct_p.tolist() == [4, 0, 1]
    capsys.readouterr()
    watch(tmp_path)
    assert "pass@1" not in capsys.readouterr().out


def test_a_dump_that_was_written_again_is_measured_again(tmp_path):
    dump(tmp_path / "0.jsonl", [4, 2])
    dump(tmp_path / "10.jsonl", [4, 0])
    watch(tmp_path)
    dump(tmp_path / "10.jsonl", [4, 3])
    watch(tmp_path)
    assert read_record(tmp_path)["steps"][10]["pass_at_k/1"] == pytest.approx(7 / 8)
    assert Pool.open(tmp_path / "watch" / "replaced" / "step-000010.1").hits().correct_p.tolist() == [4, 0]


def test_other_problems_another_number_of_samples_and_broken_rows_are_left_out_by_name(tmp_path):
    dump(tmp_path / "0.jsonl", [4, 2])
    dump(tmp_path / "10.jsonl", [4, 0, 1])
    dump(tmp_path / "20.jsonl", [4, 1], k=8)
    (tmp_path / "30.jsonl").write_text("{broken\n")
    dump(tmp_path / "40.jsonl", [4, 1])
    watcher = watch(tmp_path)
    assert sorted(read_record(tmp_path)["steps"]) == [40]
    assert sorted(watcher.left_out) == [10, 20, 30]
    assert "problems" in watcher.left_out[10]
    assert "30.jsonl" in watcher.left_out[30]
    assert sorted(path.name for path in (tmp_path / "pools").iterdir()) == ["step-000000", "step-000040"]


def test_a_pool_can_be_the_base_and_one_that_does_not_exist_is_refused(tmp_path):
    dump(tmp_path / "run" / "10.jsonl", [4, 0])
    with pytest.raises(PoolError, match="nowhere"):
        watch(tmp_path / "run", base=tmp_path / "nowhere")
    watcher = watch(tmp_path / "run", base=make_pool(tmp_path / "base", hits=[4, 2], k=4).path)
    assert "problems" in watcher.left_out[10]  # those of another task
    with pytest.raises(ConfigError, match="empty"):
        watch(tmp_path / "empty")
