"""`make bench` finds the benchmarks by what they define, and a failing one is a row with its reason."""

import json
import runpy
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def bench() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "bench" / "run.py"))


def test_benchmarks_with_a_quick_setting_are_found_without_importing_them(bench: dict[str, Any]) -> None:
    found = bench["found"]()
    assert {"plans", "verify", "engines", "cluster"} <= {name for name, quick in found.items() if quick}
    assert not found["pools"]
    assert "run" not in found


def test_a_run_leaves_a_table_with_machine_versions_and_ratios(bench: dict[str, Any], tmp_path: Path) -> None:
    assert bench["main"](["plans", "--results", str(tmp_path)]) == 0
    (table,), (record,) = tmp_path.glob("*.md"), tmp_path.glob("*.json")
    content = json.loads(record.read_text())
    assert content["machine"]["cores"] >= 1
    assert content["versions"]["numpy"]
    assert [row["ratio"] > 1 for row in content["rows"]] == [True, True]
    assert "| `plans.py` | samples of a fixed k against until 5 successes |" in table.read_text()


def test_a_benchmark_that_cannot_run_is_a_row_with_its_reason(bench: dict[str, Any], tmp_path: Path) -> None:
    bench["run_here"]("no_such_benchmark", tmp_path / "rows.json")
    assert "no_such_benchmark" in json.loads((tmp_path / "rows.json").read_text())
    with pytest.raises(SystemExit):
        bench["main"](["pools"])
