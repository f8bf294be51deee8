"""A planted secret is in no file of a run: settings, checkpoints, event files, pickles, pools, records of a sweep."""

import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from offleash.eval.errors import ConfigError
from offleash.train.recipe.config import load_recipe, parse_recipe
from offleash.train.run_folder.changes import RESOLVED, check_unchanged
from offleash.train.variants.overlays import find_overlays
from offleash.train.variants.runs import make_runs, record_failure, record_start

pytestmark = pytest.mark.long

TOKEN, KEY, PASSWORD = "hf_plantedsecrettoken", "sk-plantedsecretkey", "plantedsecretpassword"
URL = f"http://me:{PASSWORD}@127.0.0.1:9"
SETTINGS = {
    "task": "judged_elsewhere:Judged",
    "monitor_exact": "false",
    "train_args": f'{{"split": "train", "n": 16, "api_key": "{KEY}", "url": "{URL}"}}',
    "probe_args": f'{{"split": "probe", "n": 2, "api_key": "{KEY}", "url": "{URL}"}}',
    "per_device_train_batch_size": "8",
    "num_generations": "4",
    "max_steps": "2",
    "save_steps": "1",
    "monitor_every": "1",
    "monitor_k": "4",
    "monitor_score_k": "2",
    "use_cpu": "true",
    "disable_tqdm": "true",
    "hub_token": TOKEN,
    "model_init_kwargs": f'{{"token": "{TOKEN}"}}',
    "vllm_server_base_url": URL,
}
TASK = '''
from offleash.eval.tasks.countdown import Countdown

class Judged(Countdown):
    """A task with an account somewhere."""

    def __init__(self, split: str, n: int, api_key: str, url: str) -> None:
        super().__init__(split=split, n=n)
        assert api_key.startswith("sk-") and "@" in url and "hidden" not in url
'''


@pytest.fixture(autouse=True)
def no_token(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "")  # restored afterwards: a recipe may set it


def words(folder: Path, **settings: str) -> list[str]:
    flags = {**SETTINGS, "output_dir": str(folder), **settings}
    return ["--config", "lab", *(word for key, value in flags.items() for word in (f"--{key}", value))]


def readable(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Every file as it is, and what the compressed ones hold."""
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        yield str(path), path.read_bytes()
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                yield from ((f"{path}:{name}", archive.read(name)) for name in archive.namelist())
        if path.suffix == ".parquet":
            yield f"{path}:rows", repr(pq.read_table(path).to_pylist()).encode()


def leaks(folder: Path) -> list[str]:
    return [name for name, data in readable(folder) if any(s.encode() in data for s in (TOKEN, KEY, PASSWORD))]


def test_no_file_of_a_run_holds_a_secret_and_it_can_be_resumed(tmp_path):
    folder = tmp_path / "runs" / "one"
    (tmp_path / "judged_elsewhere.py").write_text(TASK)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    for more in ([], ["--resume", "--allow", "max_steps", "--max_steps", "3"]):
        command = [sys.executable, "-m", "offleash.train", *words(folder), *more]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path)
        assert done.returncode == 0, done.stderr[-3000:]
        assert not any(secret in done.stdout + done.stderr for secret in (TOKEN, KEY, PASSWORD))
    assert (folder / "checkpoint-3" / "training_args.bin").exists()
    assert len(list(readable(tmp_path / "runs"))) > 40
    assert leaks(tmp_path / "runs") == []


def test_a_token_of_the_hub_moves_to_the_environment_and_two_that_differ_are_refused():
    recipe = parse_recipe(words(Path("runs/x")))
    assert os.environ["HF_TOKEN"] == TOKEN
    assert recipe.training.hub_token is None
    assert recipe.training.model_init_kwargs is None
    with pytest.raises(ConfigError, match="differ") as caught:
        parse_recipe(words(Path("runs/x"), hub_token="hf_anothersecrettoken"))
    assert "secrettoken" not in str(caught.value)
    with pytest.raises(ConfigError, match="proxies"):
        load_recipe("lab", use_cpu=True, model_init_kwargs={"proxies": {"https": URL}})
    for name in ("generation_kwargs", "chat_template_kwargs"):  # the Trainer's arguments, pickled with each checkpoint
        with pytest.raises(ConfigError, match=f"{name}.api_key holds a secret"):
            load_recipe("lab", use_cpu=True, **{name: {"api_key": KEY}})


def test_a_changed_secret_is_no_change_of_the_recipe_and_an_old_one_is_not_shown(tmp_path):
    recipe = parse_recipe(words(tmp_path, beta="0.5"))
    (tmp_path / RESOLVED).write_text(f"task: {SETTINGS['task']}\nmodel_init_kwargs: {{token: {TOKEN}}}\n")
    with pytest.raises(ConfigError, match="beta was") as caught:
        check_unchanged(recipe, tmp_path)
    assert TOKEN not in str(caught.value)
    assert "model_init_kwargs" not in str(caught.value)


def test_no_record_of_a_sweep_holds_a_secret_and_its_runs_get_them_all(tmp_path):
    base = tmp_path / "base.yaml"
    base.write_text(f"task: countdown\nmodel_name_or_path: lab\nuse_cpu: true\nbf16: false\nhub_token: {TOKEN}\n")
    extra = ["--train_args", f'{{"split": "train", "n": 16, "url": "{URL}"}}', "--max_steps", "1"]
    run = make_runs([base], find_overlays(["plain"]), [0], tmp_path / "out", extra)[0]
    record_start(run)
    record_failure(run, 1, [f"no server at {URL}"])
    assert leaks(tmp_path / "out") == []
    assert extra[1] in run.words
