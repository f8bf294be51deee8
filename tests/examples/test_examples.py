"""The scripts under examples/ run as they are, but for a tiny model on the CPU and a small budget."""

import json
import sys
from pathlib import Path

import pytest

from offleash.eval.pool.pool import Pool

pytestmark = pytest.mark.long

EXAMPLES = Path(__file__).parents[2] / "examples"
SMALLER = {
    "max_steps=100": "max_steps=1, use_cpu=True, bf16=False, num_generations=4, per_device_train_batch_size=8",
    "max_completion_length=64": "max_completion_length=8",
    "k=64, every=50": "k=4, every=1",
}


@pytest.fixture
def run(chat_model, tmp_path, monkeypatch):
    """Execute the text of a script in an empty folder; its variables."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["script", str(chat_model)])

    def execute(text):
        for large, small in SMALLER.items():
            text = text.replace(large, small)
        assert "max_steps=1," in text
        variables = {"__name__": "__main__"}
        exec(compile(text, "script", "exec"), variables)
        return variables

    return execute


def measured(folder):
    return json.loads((Path("runs") / folder / "support.json").read_text())["steps"]


@pytest.mark.parametrize("script", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_an_example_is_short(script):
    assert len(script.read_text().splitlines()) < 40


def test_lora_on_chat_problems_is_measured_with_the_reward_of_the_trainer(run):
    pytest.importorskip("peft")
    trainer = run((EXAMPLES / "chat_lora.py").read_text())["trainer"]
    assert trainer.ref_model is None  # the base is the policy without its adapter
    assert set(measured("chat_lora")) == {"0", "1"}
    assert measured("chat_lora")["0"]["monitor/kl_base_k1"] == pytest.approx(0, abs=1e-5)


def test_each_divisor_is_a_unit_under_a_reward_between_0_and_1(run):
    probe = run((EXAMPLES / "float_reward.py").read_text())["probe"]
    (base,) = Path("runs/base-pools").iterdir()
    hits = Pool.open(base).hits()
    assert len(hits.unit_hits) == sum(len(probe.correct_answers(problem)) for problem in probe.problems)
    assert set(measured("float_reward")) == {"0", "1"}


def code_of(notebook):
    cells = [cell["source"] for cell in notebook["cells"] if cell["cell_type"] == "code"]
    return "\n\n".join("".join(source) for source in cells)


def test_the_notebook_has_the_code_of_its_script():
    notebook = json.loads((EXAMPLES / "chat.ipynb").read_text())
    assert notebook["nbformat"] == 4
    assert all(set(cell) >= {"cell_type", "metadata", "source"} for cell in notebook["cells"])
    script = (EXAMPLES / "chat_lora.py").read_text().split('"""')[2]
    shown = 'model = sys.argv[1] if len(sys.argv) > 1 else "Qwen/Qwen2.5-0.5B-Instruct"'
    assert shown in script
    script = script.replace(shown, 'model = "Qwen/Qwen2.5-0.5B-Instruct"').replace("import sys\n", "")
    assert [line for line in code_of(notebook).splitlines() if line] == [line for line in script.splitlines() if line]


def test_the_cells_of_the_notebook_run(run, chat_model):
    pytest.importorskip("peft")
    code = code_of(json.loads((EXAMPLES / "chat.ipynb").read_text()))
    run(code.replace('"Qwen/Qwen2.5-0.5B-Instruct"', repr(str(chat_model))))
    assert set(measured("chat_lora")) == {"0", "1"}
