"""examples/environment.py runs as it is, but for a tiny model on the CPU and a small budget."""

import sys
from pathlib import Path
from typing import Any

import pytest

from offleash.eval.pool.pool import Pool

pytestmark = pytest.mark.long

SCRIPT = Path(__file__).parents[2] / "examples" / "environment.py"
SMALLER = {
    "max_steps=100": "max_steps=1, use_cpu=True, bf16=False, num_generations=4, per_device_train_batch_size=8",
    "max_completion_length=256": "max_completion_length=24, report_to='none'",
    "k=64, every=50": "k=8, every=1",
}


def test_the_environment_of_the_example_judges_what_was_looked_up(
    tool_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    monkeypatch.setattr(sys, "argv", ["script", str(tool_model)])
    text = SCRIPT.read_text()
    for large, small in SMALLER.items():
        assert large in text
        text = text.replace(large, small)
    variables: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(text, str(SCRIPT), "exec"), variables)
    pool = Pool.open(tmp_path / "runs/environment/pools/step-000000")
    letters = {problem.id: row["letter"] for problem, row in zip(pool.problems, variables["held_out"], strict=True)}
    rows = pool.read(["problem_id", "correct", "completion"]).to_pylist()
    asked = [f'=== call: lookup ===\n{{"key": "{letters[row["problem_id"]]}"}}\n' in row["completion"] for row in rows]
    assert 0 < sum(asked) < len(rows) == 64
    assert all(was_asked for row, was_asked in zip(rows, asked, strict=True) if row["correct"])
    assert any(row["correct"] for row in rows)
