"""`offleash sample`: a pool that survives kill -9, is refused when drawn otherwise, and errors of one line."""

import json
import os
import random
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from offleash.eval.pool.pool import Pool
from offleash.train.cli import main

# Killed at random moments, on the real engine

LIVES = textwrap.dedent(
    """
    import os, random, signal, sys, time
    from offleash.train import cli
    from offleash.eval.engines import find_engine

    folder, kills = sys.argv[1], int(sys.argv[2])
    find_engine("transformers")  # imported once; nothing is computed before the fork
    arguments = ["--model", "lab", "--task", "countdown", "--task-args", '{"split": "probe", "n": 5}', "--k", "128",
                 "--max-new-tokens", "20", "--save-every", "0.2"]

    def life(name):
        pid = os.fork()
        if pid == 0:
            os._exit(cli.main(["sample", *arguments, "--pool", os.path.join(folder, name)]))
        return pid

    started = time.monotonic()
    assert os.waitpid(life("whole"), 0)[1] == 0
    length = time.monotonic() - started
    rng = random.Random(int(sys.argv[3]))
    pid = life("incomplete")
    time.sleep(rng.uniform(0.2, 0.7) * length)
    os.kill(pid, signal.SIGINT)
    print("interrupted", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    died = 0
    while died < kills:
        pid = life("incomplete")
        time.sleep(rng.uniform(0.2, 0.7) * length)
        os.kill(pid, signal.SIGKILL)
        if os.waitpid(pid, 0)[1] != signal.SIGKILL:
            break  # it was done before
        died += 1
    print("killed", died)
    assert os.waitpid(life("incomplete"), 0)[1] == 0
    """
)


def run_lives(folder: Path, kills: int, seed: int) -> str:
    script = folder / "lives.py"
    script.write_text(LIVES)
    done = subprocess.run(
        [sys.executable, str(script), str(folder), str(kills), str(seed)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.long
def test_killed_again_and_again_a_run_ends_with_the_very_same_pool(tmp_path: Path) -> None:
    said = run_lives(tmp_path, kills=3, seed=random.randrange(10**6))
    assert "interrupted 130" in said
    assert int(said.split("killed ")[1].split()[0]) >= 1
    whole, incomplete = Pool.open(tmp_path / "whole"), Pool.open(tmp_path / "incomplete")
    assert incomplete.is_complete
    assert incomplete.duplicates() == 0
    columns = ["problem_id", "index", "answer", "correct", "tokens", "logprob", "completion"]
    assert incomplete.read(columns).to_pylist() == whole.read(columns).to_pylist()


# The command


def lab(folder: Path, *words: str, problems: int = 3) -> int:
    arguments = ["--model", "lab", "--task", "countdown", "--task-args", f'{{"split": "probe", "n": {problems}}}']
    return main(["sample", *arguments, "--pool", str(folder), "--k", "8", "--max-new-tokens", "20", *words])


def test_the_command_fills_a_pool_says_how_and_finds_it_complete(tmp_path: Path, capsys: Any) -> None:
    assert lab(tmp_path / "pool") == 0
    said = capsys.readouterr().out
    assert "temperature 1.0, top_p 1.0, top_k 0" in said
    assert "drew 24 samples" in said
    assert Pool.open(tmp_path / "pool").is_complete
    assert lab(tmp_path / "pool") == 0
    assert "nothing to sample" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "field"),
    [
        (["--temperature", "0.7"], "temperature: 1.0 -> 0.7"),
        (["--seed", "1"], "seed: 0 -> 1"),
        (["--stop", "x"], "stop: "),
        (["--plan", "until"], "plan: "),
        (["--dtype", "bfloat16"], "dtype: 'float32' -> 'bfloat16'"),
        (["--end-token", "<pad>"], "stop: "),
    ],
)
def test_a_pool_drawn_otherwise_is_refused_naming_the_field(
    tmp_path: Path, capsys: Any, words: list[str], field: str
) -> None:
    pool = make_lab_pool_once(tmp_path.parent / "one")
    capsys.readouterr()
    assert lab(pool, *words) == 2
    error = capsys.readouterr().err
    assert field in error
    assert len(error.strip().splitlines()) == 1


def make_lab_pool_once(folder: Path) -> Path:
    if not (folder / "pool.json").exists():
        assert lab(folder) == 0
    return folder


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--model", "no/such-model"], "no/such-model"),
        (["--model", "./runs/nothing"], "./runs/nothing"),
        (["--model", "http://127.0.0.1:9/v1"], "http://127.0.0.1:9/v1"),
        (["--engine", "vlm"], "vllm"),
        (["--engine", "openai"], "URL"),
        (["--engine-args", '{"batch": 1}'], "batch_size"),
        (["--engine-args", '{"context": 1}'], "context"),
        (["--engine-args", '{"source": 1}'], "'source'"),
        (["--engine-args", '{"batch_size": "x"}'], "batch_size must be"),
        (["--engine-args", '{"batch_size": null}'], "batch_size must be"),
        (["--template-args", "[1]"], "--template-args"),
        (["--template-args", "[" * 100_000], "--template-args"),
        (["--ids", "nope"], "'nope'"),
        (["--ids", "@/dev/null"], "/dev/null"),
        (["--temperature", "0"], "temperature"),
        (["--max-new-tokens", "4000"], "113"),
        (["--end-token", "ab"], "'ab'"),
        (["--template", "missing.jinja"], "missing.jinja"),
        (["--plan", "until", "--successes", "0"], "successes"),
        (["--successes", "3"], "--plan until"),
        (["--served-model", "x"], "served_model"),
        (["--revision", "main"], "revision"),
        (["--model", "http://127.0.0.1:9/v1", "--revision", "main"], "revision"),
        (["--max-new-tokens", "0"], "max_new_tokens"),
        (["--k", "99999999999999"], "10,000,000"),
        (["--k", "0"], "k must be"),
        (["--temperature", "inf"], "temperature"),
        (["--temperature", "nan"], "temperature"),
        (["--save-every", "-1"], "save_every"),
        (["--max-verifier-failures", "7"], "max_verifier_failures"),
        (["--model", ""], "model"),
        (["--pool", ""], "folder"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line_and_leaves_no_pool(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch, words: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert lab(tmp_path / "pool", *words) == 2
    error = capsys.readouterr().err
    assert said in error
    assert len(error.strip().splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_an_adapter_without_peft_is_refused_before_a_pool_is_made(
    tmp_path: Path, capsys: Any, lab_base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(lab_base)}))
    save_file({"x": torch.zeros(1)}, adapter / "adapter_model.safetensors")
    assert lab(tmp_path / "pool", "--model", str(adapter)) == 2
    assert "pip install 'offleash[peft]'" in capsys.readouterr().err
    assert not (tmp_path / "pool").exists()


def test_a_folder_that_cannot_be_written_is_said_in_one_line(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "file").write_text("")
    assert lab(tmp_path / "file" / "pool") == 2
    assert "file/pool" in capsys.readouterr().err


def test_several_tasks_get_a_pool_each_and_problems_can_be_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text(
        "from offleash.eval.tasks.countdown import Countdown\n"
        "class Four(Countdown):\n    name = 'countdown/four'\n"
        "    def __init__(self): super().__init__(split='probe', n=5, numbers=4)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    words = ["--model", "lab", "--task", "countdown", "mine:Four", "--pool", str(tmp_path / "pools"), "--k", "4"]
    arguments = ["--task-args", '{"split": "probe", "n": 3}', "--task-args", "{}", "--limit", "2"]
    assert main(["sample", *words, *arguments, "--max-new-tokens", "20"]) == 0
    pools = [Pool.open(tmp_path / "pools" / name) for name in ("countdown", "countdown-four")]
    assert [len(pool.problem_ids) for pool in pools] == [2, 2]
    assert all(pool.is_complete for pool in pools)
