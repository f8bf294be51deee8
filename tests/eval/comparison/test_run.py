"""The folder of a run leads to its base's pool, wherever the command is run and wherever both were moved."""

import json
import shutil
from pathlib import Path

import pytest

from offleash.callbacks.summary import path_from, write_record
from offleash.eval.comparison.run import is_run, run_pools
from offleash.eval.errors import PoolError
from offleash.eval.pool.testing import make_pool
from offleash.train.cli import main


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """`runs/lab` with two measured steps beside `runs/base-pools`."""
    base = make_pool(tmp_path / "runs" / "base-pools" / "sums-1", [4, 2, 0, 3])
    folder = tmp_path / "runs" / "lab"
    for step, hits in ((0, [4, 1, 0, 3]), (50, [8, 0, 1, 3])):
        make_pool(folder / "pools" / f"step-{step:06d}", hits)
    write_record(folder, {"base_pool": path_from(folder, base.path), "base": {}, "steps": {}})
    return folder


def test_the_base_is_named_relative_to_the_run_and_found_after_both_moved(run: Path, tmp_path: Path) -> None:
    assert json.loads((run / "support.json").read_text())["base_pool"] == "../base-pools/sums-1"
    assert run_pools(run) == (run / "../base-pools/sums-1", run / "pools")
    moved = tmp_path / "elsewhere"
    shutil.move(run.parent, moved)
    assert (run_pools(moved / "lab")[0] / "pool.json").exists()


def test_a_run_behind_a_symbolic_link_finds_its_base(run: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(run)
    assert (run_pools(tmp_path / "link")[0] / "pool.json").exists()


def test_an_older_record_is_relative_to_the_working_directory(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_record(run, {"base_pool": "runs/base-pools/sums-1", "base": {}, "steps": {}})
    monkeypatch.chdir(tmp_path)
    assert run_pools(run)[0] == Path("runs/base-pools/sums-1")


def test_an_older_record_finds_the_base_beside_the_run_from_anywhere(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_record(run, {"base_pool": "some/place/base-pools/sums-1", "base": {}, "steps": {}})
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert run_pools(run)[0] == run.resolve().parent / "base-pools" / "sums-1"


@pytest.mark.parametrize("record", ['{"base_pool": "../gone"}', '{"base_pool": null}', "{}", "[1]", "{"])
def test_a_record_without_a_base_pool_that_is_there_is_refused(run: Path, record: str) -> None:
    (run / "support.json").write_text(record)
    assert is_run(run)
    with pytest.raises(PoolError, match=r"support\.json"):
        run_pools(run)


def test_compare_takes_the_folder_of_a_run(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", str(run), "--resamples", "20", "--quiet"]) == 0
    out = capsys.readouterr().out
    assert "lab, 2 steps, compared with" in out
    assert main(["compare", str(run.parent / "base-pools"), str(run / "pools"), "--resamples", "20", "--quiet"]) == 0
    assert "step-000050" in out


def test_json_on_standard_output_is_all_that_is_there(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", str(run), "--resamples", "20", "--json", "-"]) == 0
    out, err = capsys.readouterr()
    assert [policy["side"]["step"] for policy in json.loads(out)["policies"]] == [0, 50]
    assert "comparing" in err
    assert not (run.parent / "-").exists()


def test_two_reports_cannot_share_standard_output(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", str(run), "--json", "-", "--html", "-"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "--json" in err
    assert "--html" in err
