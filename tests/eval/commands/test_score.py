"""`offleash score`: traces by models, and errors of one line."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from offleash.eval.pool.pool import Pool
from offleash.eval.scoring.teacher_forcing import score
from offleash.eval.tasks import load_task
from offleash.train.cli import main

ROWS: list[dict[str, Any]] = [
    {"prompt": "3 4 5:12=", "completion": "3+4+5"},
    {"prompt": "3 4 5:12=", "completion": "(3+4)+5"},
    {"prompt": [{"role": "user", "content": "2 6:12="}], "completion": "2*6", "truncated": True},
    {"prompt": "2 6:12=", "completion": [{"role": "assistant", "content": "6*2"}]},
]


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory, lab_base: Path) -> Path:
    """The lab model with its output layer's first rows changed."""
    folder = tmp_path_factory.mktemp("models") / "other"
    shutil.copytree(lab_base, folder)
    model = AutoModelForCausalLM.from_pretrained(lab_base, dtype="float32")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter *= 1.05
    model.save_pretrained(folder)
    return folder


def nlls(model: Any, tokenizer: Any) -> list[float]:
    """Of ROWS, with the end token but where cut; messages without a template are their text and a line end."""
    prompts = ["3 4 5:12=", "3 4 5:12=", "2 6:12=\n", "2 6:12="]
    texts = ["3+4+5", "(3+4)+5", "2*6", "6*2"]
    ids = [tokenizer(text)["input_ids"] + [tokenizer.eos_token_id] for text in texts]
    ids[2].pop()
    scores = score(model, [tokenizer(prompt)["input_ids"] for prompt in prompts], ids)
    return list(-scores.logprob_s / scores.tokens_s)


def test_traces_by_models_in_every_format(
    tmp_path: Path, other: Path, lab_model: tuple[Any, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    one = write(tmp_path / "one.jsonl", ROWS)
    pq.write_table(pa.Table.from_pylist([{"prompt": r["prompt"], "completion": r["completion"]} for r in ROWS[:2]]),
                   tmp_path / "two.parquet")  # fmt: skip
    words = ["--json", str(tmp_path / "out.json"), "--markdown", str(tmp_path / "out.md")]
    line = ["score", "--traces", str(one), str(tmp_path / "two.parquet"), "--model", "lab", str(other), *words]
    assert main(line) == 0
    out = capsys.readouterr().out
    record = json.loads((tmp_path / "out.json").read_text())
    assert record.keys() == {"format", "confidence", "temperature", "notes", "traces"}
    assert [(f["file"], f["traces"], f["problems"]) for f in record["traces"]] == [
        ("one.jsonl", 4, 3),
        ("two.parquet", 2, 1),
    ]
    first, second = record["traces"][0]["models"]
    assert first.keys() == second.keys() == {
        "model", "revision", "weights", "dtype", "template", "end_token", "scored", "empty", "too_long", "perplexity",
        "mean_perplexity", "median_perplexity", "token_entropy", "tokens",
    }  # fmt: skip
    a, b, c, d = nlls(*lab_model)
    assert first["perplexity"]["value"] == pytest.approx(math.exp(((a + b) / 2 + c + d) / 3), rel=1e-5)
    assert first["perplexity"]["n"] == 3
    assert first["perplexity"]["low"] < first["perplexity"]["value"] < first["perplexity"]["high"]
    assert first["tokens"]["value"] == pytest.approx((7 + 3 + 4) / 3)
    assert second["perplexity"]["value"] != first["perplexity"]["value"]
    assert record["traces"][1]["models"][0]["perplexity"]["low"] is None  # one problem has no interval
    assert "one.jsonl under lab" in out
    assert f"two.parquet under {other.parent.name}/other" in out
    table = [row for row in (tmp_path / "out.md").read_text().splitlines() if row.startswith("|")]
    assert len(table) == 6
    assert len({row.count(" | ") for row in table}) == 1


def test_half_a_character_in_a_trace_is_scored_as_a_pool_would_store_it(tmp_path: Path) -> None:
    rows = [
        {"prompt": "3 4:7=\ud800", "completion": "3+4\udfff"},
        {"prompt": [{"role": "user", "content": "3 4:7=\ud800"}], "completion": "3+4"},
    ]
    found = []
    incomplete = json.dumps(rows)
    for text in (incomplete, incomplete.replace("ud800", "ufffd").replace("udfff", "ufffd")):
        file = write(tmp_path / "traces.jsonl", json.loads(text))
        assert main(["score", "--traces", str(file), "--model", "lab", "--json", str(tmp_path / "out")]) == 0
        found.append(json.loads((tmp_path / "out").read_text())["traces"][0]["models"][0]["perplexity"])
    assert found[0] == found[1]


def test_a_pool_whose_samples_are_gone_is_not_called_complete(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pool = tmp_path / "pool"
    arguments = ["--task", "countdown", "--task-args", '{"split": "probe", "n": 1}', "--k", "2"]
    assert main(["sample", "--model", "lab", *arguments, "--max-new-tokens", "8", "--pool", str(pool)]) == 0
    assert main(["score", str(pool), "--model", "lab"]) == 0
    for part in pool.glob("samples-*.parquet"):
        part.unlink()
    capsys.readouterr()
    assert main(["score", str(pool), "--model", "lab"]) == 2
    out, error = capsys.readouterr()
    assert str(pool) in error
    assert out == ""


def test_a_model_that_lacks_a_tensor_is_not_scored(tmp_path: Path, other: Path, capsys: Any) -> None:
    incomplete = tmp_path / "incomplete"
    shutil.copytree(other, incomplete)
    tensors = load_file(incomplete / "model.safetensors")
    del tensors["model.norm.weight"]
    save_file(tensors, incomplete / "model.safetensors", {"format": "pt"})
    assert main(["score", "--traces", str(write(tmp_path / "t.jsonl", ROWS)), "--model", str(incomplete)]) == 2
    assert "model.norm.weight" in capsys.readouterr().err


def test_a_task_gives_the_prompt_of_a_problem_id(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    task = load_task("countdown", split="probe", n=3)
    rows = [{"problem_id": problem.id, "completion": "1+1"} for problem in task.problems]
    explicit = [{"prompt": problem.prompt, "completion": "1+1"} for problem in task.problems]
    found = []
    for name, content in (("ids.jsonl", rows), ("prompts.jsonl", explicit)):
        words = ["--task", "countdown", "--task-args", '{"split": "probe", "n": 3}', "--json", str(tmp_path / "out")]
        assert main(["score", "--traces", str(write(tmp_path / name, content)), "--model", "lab", *words]) == 0
        found.append(json.loads((tmp_path / "out").read_text())["traces"][0]["models"][0]["perplexity"])
    assert found[0] == found[1]
    assert main(["score", "--traces", str(tmp_path / "ids.jsonl"), "--model", "lab"]) == 2
    assert "name the --task" in capsys.readouterr().err


def test_empty_and_too_long_traces_are_counted_and_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"prompt": "3 4:7=", "completion": text} for text in ("3+4", "", "3+" * 80)]
    words = ["--model", "lab", "--json", str(tmp_path / "out")]
    assert main(["score", "--traces", str(write(tmp_path / "t.jsonl", rows)), *words]) == 0
    out, err = capsys.readouterr()
    assert "1 of 3" in out
    assert "1 empty traces are left out" in err
    assert "1 traces do not fit into the model's 128 tokens" in err
    (model,) = json.loads((tmp_path / "out").read_text())["traces"][0]["models"]
    assert (model["scored"], model["empty"], model["too_long"]) == (1, 1, 1)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([{"prompt": "3"}], "line 1 has no completion (it has prompt)"),
        ([{"completion": "3"}], "line 1 has no prompt and no problem_id"),
        ([{"problem_id": "x", "completion": "3"}], "name the --task"),
        ([{"prompt": "3", "completion": 5.5, "truncated": "maybe"}], "truncated must be true or false"),
        (
            [
                {"problem_id": "x", "prompt": "3", "completion": "3"},
                {"problem_id": "x", "prompt": "4", "completion": "3"},
            ],
            "line 2 gives problem_id 'x' a different prompt",
        ),
        ([], "has no traces"),
    ],
)
def test_a_bad_file_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], rows: list[dict[str, Any]], said: str
) -> None:
    assert main(["score", "--traces", str(write(tmp_path / "t.jsonl", rows)), "--model", "lab"]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert len(error.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--model", "lab"], "--traces"),
        (["nowhere", "--model", "lab"], "nowhere"),
        (["--traces", "nowhere.jsonl", "--model", "lab"], "nowhere.jsonl: No such file"),
        (["--traces", "x", "--model", "http://localhost/v1"], "http://localhost/v1"),
        (["--traces", "x", "--model", "./no/such"], "./no/such"),
        (["--traces", "x", "--model", "lab", "--k", "4"], "--k"),
        (["pool", "--model", "lab", "--json", "x"], "--json"),
        (["pool", "--model", "lab", "--k", "0"], "k must be at least 1, got 0"),
        (["pool", "--model", "lab", "--temperature", "0"], "temperature must be above 0"),
        (["pool", "--model", "lab", "--temperature", "inf"], "temperature must be above 0 and finite"),
        (["pool", "--model", "lab", "--save-every", "-1"], "save_every must be 0 seconds or more"),
        (["pool", "--model", ""], "--model"),
        (["pool", "--model", "lab", "--revision", "main"], "--revision"),
        (["pool", "--model", "lab", "--name", "../up"], "'../up'"),
        (["--traces", "x", "--model", "lab", "--json", "no/such/out"], "no/such"),
        (["--traces", "a/x", "b/x", "--model", "lab"], "--traces"),
    ],
)
def test_an_error_is_one_line(capsys: pytest.CaptureFixture[str], words: list[str], said: str) -> None:
    assert main(["score", *words]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert len(error.strip().splitlines()) == 1


def test_a_pool_of_another_template_or_too_large_a_k_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--task", "countdown", "--task-args", '{"split": "probe", "n": 1}', "--k", "2"]
    pool = tmp_path / "pool"
    assert main(["sample", "--model", "lab", *arguments, "--max-new-tokens", "8", "--pool", str(pool)]) == 0
    capsys.readouterr()
    assert main(["score", str(pool), "--model", "lab", "--k", "3"]) == 2
    assert "budget of 2 samples" in capsys.readouterr().err
    content = json.loads((pool / "pool.json").read_text())
    content["spec"]["template"] = "another"
    spec = type(Pool.open(pool).spec).from_json(content["spec"])
    content["fingerprint"] = spec.fingerprint()
    (pool / "pool.json").write_text(json.dumps(content))
    assert main(["score", str(pool), "--model", "lab"]) == 2
    assert "--template" in capsys.readouterr().err
    assert not (pool / "scores").exists()


def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["score", "--help"])
    out = capsys.readouterr().out
    for words in ("examples:", "--traces", "end token", "offleash compare", "Perplexity is exp of the mean"):
        assert words in out
