"""offleash compare: what it prints and writes, which pools it takes, and how it refuses bad input."""

import base64
import gzip
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from offleash.eval import compare
from offleash.eval.browse import embed
from offleash.eval.comparison.scopes import ROWS
from offleash.eval.pool.testing import make_pool
from offleash.eval.report.write import FORMATS
from offleash.train.cli import main


@pytest.fixture(scope="module")
def pools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base and two checkpoints, each with a pool of the tasks `one` and `two`."""
    root = tmp_path_factory.mktemp("pools")
    for task in ("one", "two"):
        make_pool(root / "base" / task, [4, 2, 0, 3], task=task)
        make_pool(root / "run" / "step-50" / task, [4, 1, 0, 3], task=task)
        make_pool(root / "run" / "step-100" / task, [8, 0, 1, 3], task=task)
    return root


def test_the_command_prints_and_writes_every_file(
    pools: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {name: tmp_path / f"report.{name}" for name in FORMATS if name != "text"}
    flags = [word for name, path in files.items() for word in (f"--{name}", str(path))]
    base, policy = pools / "base" / "one", pools / "run" / "step-100" / "one"
    assert main(["compare", str(base), str(policy), "--resamples", "50", "--full", *flags]) == 0
    out, err = capsys.readouterr()
    assert "SRR" in out
    assert "neither curve leads beyond noise at any k compared (1 to 8)" in " ".join(out.split())
    assert "comparing" in err
    assert json.loads(files["json"].read_text())["policies"][0]["side"]["label"] == "one"
    assert files["html"].read_text().startswith("<!doctype html>")
    assert files["latex"].read_text().count(r"\begin{table") > 3
    assert files["markdown"].read_text().startswith("# ")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(path.name for path in files.values())


def test_the_command_takes_a_series_and_named_sides(pools: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", str(pools / "base"), str(pools / "run"), "--resamples", "20", "--quiet", "--full"]) == 0
    out, err = capsys.readouterr()
    assert "Series: problems" in out
    assert err == ""
    words = ["--base", str(pools / "base/one"), str(pools / "base/two")]
    for step in (50, 100):
        words += ["--policy", str(pools / f"run/step-{step}/one"), str(pools / f"run/step-{step}/two")]
    assert main(["compare", *words, "--resamples", "20", "--quiet", "--full"]) == 0
    assert "By task" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["{base}"], "BASE POLICY"),
        (["{base}", "nowhere"], "does not exist"),
        (["{base}", "{policy}", "--base", "{base}"], "not both"),
        (["--base", "{base}"], "--base and --policy"),
        (["{base}", "{policy}", "--json", "{root}/no/such/file"], "there is no folder"),
        (["{base}", "{policy}", "--html", "{root}"], "it is a folder"),
        (["{base}", "{other}"], "task: "),
        (["{base}", "{policy}", "--k", "0"], "k must be at least 1"),
        (["{base}", "{policy}", "--confidence", "2"], "confidence must lie"),
        (["{base}", "{policy}", "--resamples", "0"], "resamples"),
    ],
)
def test_bad_input_is_one_line_and_exit_status_2(
    pools: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    places = {
        "base": pools / "base" / "one",
        "policy": pools / "run" / "step-100" / "one",
        "other": pools / "run" / "step-100" / "two",
        "root": pools,
    }
    assert main(["compare", "--quiet", *(word.format(**places) for word in words)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert message in err


def test_help_teaches_with_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["compare", "--help"])
    assert caught.value.code == 0
    assert "offleash compare pools/base pools/policy --html report.html" in capsys.readouterr().out


def test_verdicts_alone_give_dashes_and_a_reason_where_answers_would_be_needed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("base", "policy"):
        rows = [{"problem_id": f"p{i}", "index": j, "correct": (i + j) % 3 == 0} for i in range(6) for j in range(8)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
        assert main(["import", str(tmp_path / f"{name}.jsonl"), "--pool", str(tmp_path / name)]) == 0
    path = tmp_path / "record.json"
    assert main(["compare", *(str(tmp_path / n) for n in ("base", "policy")), "--full", "--json", str(path)]) == 0
    said, record = capsys.readouterr().out, json.loads(path.read_text())
    assert "WARNING: base, imported: 48 samples have a verdict and no answer on record" in " ".join(said.split())
    table = {line.split("  ")[0]: line.split() for line in said.splitlines() if "  " in line}
    undefined = ("majority", "answer_entropy", "answer_entropy_corrected", "effective_answers", "pcmd", "no_answer")
    unsaid = ("truncated", "timeout", "error")
    samples = record["policies"][0]["overall"]["samples"]
    for key in (*undefined, *unsaid):
        assert [samples[key][side]["value"] for side in ("base", "policy", "difference")] == [None] * 3, key
        assert table[ROWS[key].replace("@k", "@8")][-3:] == ["–"] * 3
    for key in ("avg", "cover_0.2", "cover_0.8"):
        assert samples[key]["base"]["value"] is not None
    reason = next(line for line in record["warnings"] if "does not say which" in line)
    assert all(word in reason for word in unsaid)


@pytest.mark.parametrize(
    ("column", "known"), [({"status": "ok"}, ("truncated", "timeout", "error")), ({"truncated": False}, ("truncated",))]
)
def test_a_status_that_a_file_records_and_never_has_is_a_share_of_0(
    tmp_path: Path, column: dict[str, Any], known: tuple[str, ...]
) -> None:
    rows = [{"problem_id": "p", "index": j, "answer": "1", "correct": j > 3, **column} for j in range(8)]
    (tmp_path / "samples.jsonl").write_text("\n".join(map(json.dumps, rows)))
    for name in ("base", "policy"):
        assert main(["import", str(tmp_path / "samples.jsonl"), "--pool", str(tmp_path / name)]) == 0
    found = compare(tmp_path / "base", tmp_path / "policy", resamples=20).policies[0].overall.rows
    for status in ("truncated", "timeout", "error"):
        assert (found[status].base.value == 0) == (status in known)
        assert math.isnan(found[status].base.value) == (status not in known)
    assert found["no_answer"].base.value == 0


def test_the_default_is_the_verdict_first_and_last_with_one_table(
    pools: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["compare", str(pools / "base"), str(pools / "run"), "--resamples", "20", "--quiet"]
    said = {}
    for flag in ("", "--brief", "--full"):
        assert main([*words, *([flag] if flag else [])]) == 0
        said[flag] = capsys.readouterr().out
    assert said[""] == said["--brief"]
    brief, full = said[""].split("\n"), said["--full"].split("\n")
    assert len(brief) < 20 < 100 < len(full)
    assert brief[0] == full[0] == "run, 2 steps, compared with base (one, two)"
    for lines in (brief, full):
        assert lines[2].startswith(("Support ", "As good as reweighting", "Undecided", "No verdict"))
        assert lines[-2].startswith("Verdict: ")
        assert lines[2].lower().split(" at ")[0].removeprefix("no verdict") in lines[-2]
    assert sum(line.startswith("---") for line in brief) == 1


def test_the_page_has_every_unit_lost_and_gained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_pool(tmp_path / "base" / "step-1", [3] * 30 + [0])
    make_pool(tmp_path / "run" / "step-1", [0] * 30 + [2])
    make_pool(tmp_path / "run" / "step-2", [0] * 30 + [2])
    words = ["compare", str(tmp_path / "base"), str(tmp_path / "run"), "--resamples", "20", "--quiet"]
    page, record = tmp_path / "page.html", tmp_path / "record.json"
    assert main([*words, "--html", str(page), "--json", str(record)]) == 0
    text = page.read_text()
    assert text.count("3/8 → 0/8") == 10 + 10  # the clearest of both steps; all of them are in the map
    (packed,) = re.findall(r'id="offleash-data">"(.*?)"<', text)
    data = json.loads(gzip.decompress(base64.b64decode(packed)))["data"]
    grid, cells = (
        data[embed.key("grid", run="sums", level="problem")],
        [name for name in data if name.startswith("cell\n")],
    )
    assert grid["base"]["hits"] == [3] * 30 + [0]
    assert grid["steps"]["2"]["hits"] == [0] * 30 + [2]
    assert len(cells) == 2 * 31
    assert [len(p["lost"]["examples"]) for p in json.loads(record.read_text())["policies"]] == [10, 30]
    assert main([*words, "--json", str(record)]) == 0
    assert [len(p["lost"]["examples"]) for p in json.loads(record.read_text())["policies"]] == [10, 10]
    capsys.readouterr()
