"""A pool in object storage is written, resumed, grown, damaged, judged and compared as one in a folder is."""

import os
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.fs
import pytest

from offleash.eval import Pool, compare
from offleash.eval.commands.compare import main as compare_main
from offleash.eval.errors import ConfigError, PoolError
from offleash.eval.pool.merge import merge_pools
from offleash.eval.pool.testing import make_pool, make_problems, make_spec
from offleash.eval.storage import StoragePath, _system, path_at
from offleash.train.cli import main

ROW = {"answer": "7", "correct": True, "status": "ok"}


@pytest.fixture
def memory() -> str:
    return f"memory://{uuid.uuid4().hex}"


def rows(pool: Pool, index: list[int]) -> dict[str, Any]:
    return {name: [value] * len(index) for name, value in {"problem_id": "p0", **ROW}.items()} | {"index": index}


def life_of_a_pool(where: str) -> None:
    problems = make_problems(2)
    pool = Pool.open_or_create(f"{where}/pool", make_spec(problems, 4), problems)
    assert isinstance(pool.path, StoragePath)
    pool.append(rows(pool, [0, 1]))
    hidden = pool.parts.stage(pool.parts.staged(pool.parts.paths()[0]).slice(0, 0))
    again = Pool.open(f"{where}/pool")
    assert [path.name.startswith("samples-") for path in again.parts.paths()] == [True]  # what is hidden does not count
    assert again.missing()[0].tolist() == [2, 3]
    pool.adopt(hidden)
    assert len(again.parts.paths()) == 2
    assert not hidden.exists()
    grown = Pool.open_or_create(f"{where}/pool", make_spec(make_problems(3), 6), make_problems(3))
    assert [len(missing) for missing in grown.missing()] == [4, 6, 6]
    assert grown.read(["index"], problem_ids=["p0"]).column("index").to_pylist() == [0, 1]
    with pytest.raises(PoolError, match="temperature"):
        Pool.open_or_create(f"{where}/pool", make_spec(problems, 4, temperature=0.5), problems)
    part = grown.parts.paths()[0]
    part.write_bytes(part.read_bytes()[:-30])
    with pytest.raises(PoolError, match=f"{part.name} is damaged"):
        Pool.open(f"{where}/pool").hits()
    with pytest.raises(PoolError, match="other files"):
        Pool.create(where, make_spec(problems, 4), problems)
    with pytest.raises(PoolError, match=f"{where}/none does not exist"):
        Pool.open(f"{where}/none")


def test_a_pool_lives_in_memory(memory: str) -> None:
    life_of_a_pool(memory)


def test_pools_in_storage_compare_and_merge_as_those_in_folders(memory: str, tmp_path: Path, capsys: Any) -> None:
    for name, hits in (("base", [3, 0, 2]), ("policy", [4, 1, 0])):
        make_pool(f"{memory}/{name}", hits, 4)
        make_pool(tmp_path / name, hits, 4)
    stored, local = (compare(f"{where}/base", f"{where}/policy") for where in (memory, tmp_path))
    assert repr(stored.policies[0].overall) == repr(local.policies[0].overall)
    assert compare_main([f"{memory}/base", f"{memory}/policy"]) == 0
    assert capsys.readouterr().out
    assert merge_pools(f"{memory}/base", [f"{memory}/base"]).shared == 0
    merged = merge_pools(f"{memory}/both", [f"{memory}/base"])
    assert Pool.open(f"{memory}/both").hits().correct_p.tolist() == [3, 0, 2]
    assert merged


def sample_words(where: str | Path, n: int, k: int) -> list[str]:
    words = ["sample", "--model", "lab", "--task", "countdown", "--max-new-tokens", "20", "--k", str(k)]
    return [*words, "--task-args", f'{{"split": "probe", "n": {n}}}', "--pool", str(where)]


def test_a_model_samples_into_storage_and_the_same_command_finds_nothing_left(memory: str, capsys: Any) -> None:
    words = sample_words(f"{memory}/lab", 2, 4)
    assert main(words) == 0
    assert "no locks" in capsys.readouterr().err
    assert Pool.open(f"{memory}/lab").is_complete
    assert main(words) == 0
    assert not any(Path(memory.partition("://")[0] + ":").glob("**/*"))  # nothing of that name on this machine


def test_a_pool_in_storage_is_scored_and_exported_as_one_in_a_folder(memory: str, tmp_path: Path, capsys: Any) -> None:
    scored = []
    for where in (memory, str(tmp_path)):
        assert main(sample_words(f"{where}/lab", 2, 4)) == 0
        assert main(["score", f"{where}/lab", "--model", "lab", "--k", "2"]) == 0
        scored.append(capsys.readouterr().out.replace(where, "").splitlines()[-1])
        assert main(["export", f"{where}/lab", "--to", str(tmp_path / f"{len(scored)}.jsonl")]) == 0
    assert scored[0] == scored[1]
    assert (tmp_path / "1.jsonl").read_text() == (tmp_path / "2.jsonl").read_text()
    assert any(path.name.startswith("scores-") for path in path_at(f"{memory}/lab").rglob("*.parquet"))


def test_what_cannot_be_used_is_refused_in_one_line(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="nonsense://bucket"):
        path_at("nonsense://bucket/pool").exists()
    with pytest.raises(ConfigError, match="s3:// names no bucket"):
        path_at("s3://")
    assert main(["compare", "nonsense://bucket/a", "nonsense://bucket/b"]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1
    (tmp_path / "x.jsonl").write_text("{}")
    assert main(["import", str(tmp_path / "x.jsonl"), "--pool", "s3://bucket/pool"]) == 2
    assert "s3://bucket/pool" in capsys.readouterr().err
    make_pool(tmp_path / "pool", [1], 2)
    monkeypatch.chdir(tmp_path)
    assert main(["export", "pool", "--to", "s3://bucket/x.jsonl"]) == 2
    assert "s3://bucket/x.jsonl" in capsys.readouterr().err
    assert not (tmp_path / "s3:").exists()


def test_storage_that_cannot_be_reached_is_said_in_one_line(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def is_down(path: StoragePath) -> None:
        raise OSError("could not connect to server")

    monkeypatch.setattr(StoragePath, "_info", is_down)
    assert main(["compare", "memory://down/a", "memory://down/b"]) == 2
    error = capsys.readouterr().err
    assert "memory://down/a" in error
    assert len(error.strip().splitlines()) == 1


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    """A bucket of a server that speaks S3, whose log is `s3.log`."""
    pytest.importorskip("moto")
    port = 20_000 + os.getpid() % 20_000
    line = [sys.executable, "-m", "moto.server", "-p", str(port)]
    with (tmp_path / "s3.log").open("wb") as log:
        server = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=log)
    url = f"http://127.0.0.1:{port}"
    settings = {"ENDPOINT_URL": url, "REGION": "us-east-1", "ACCESS_KEY_ID": "test", "SECRET_ACCESS_KEY": "test"}
    for name, value in settings.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    try:
        for _ in range(600):
            try:
                urllib.request.urlopen(url, timeout=1).close()
                break
            except (urllib.error.URLError, OSError):
                time.sleep(0.2)
        made = pyarrow.fs.S3FileSystem(endpoint_override=url, region="us-east-1", allow_bucket_creation=True)
        made.create_dir("bucket")
        _system.cache_clear()
        yield "s3://bucket"
    finally:
        server.kill()
        server.wait()


@pytest.mark.slow
def test_a_pool_lives_in_s3(s3: str, tmp_path: Path) -> None:
    life_of_a_pool(s3)
    make_pool(f"{s3}/base", [3, 0, 2], 4)
    make_pool(f"{s3}/policy", [4, 1, 0], 4)
    make_pool(tmp_path / "base", [3, 0, 2], 4)
    stored, half = compare(f"{s3}/base", f"{s3}/policy"), compare(tmp_path / "base", f"{s3}/policy")
    assert repr(stored.policies[0].overall) == repr(half.policies[0].overall)
    with pytest.raises((PoolError, ConfigError), match="absent"):
        Pool.open("s3://absent/pool")


@pytest.mark.slow
def test_ray_workers_write_to_s3_themselves_and_the_pool_is_that_of_a_folder(s3: str, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    line = [sys.executable, "-m", "offleash.train.cli"]
    driver = subprocess.Popen([*line, *sample_words(f"{s3}/ray", 8, 128), "--ray", "--ray-workers", "2"])
    assert driver.wait(timeout=900) == 0
    assert main(sample_words(tmp_path / "here", 8, 128)) == 0
    columns = ["problem_id", "index", "answer", "correct", "completion"]
    stored, local = (Pool.open(path).read(columns).to_pylist() for path in (f"{s3}/ray", tmp_path / "here"))
    assert stored == local
    assert Pool.open(f"{s3}/ray").duplicates() == 0
    written = re.findall(r"PUT /bucket/ray/\.\w{32}\.(\d+)\.", (tmp_path / "s3.log").read_text())
    assert len(set(written) - {str(driver.pid)}) == 2  # by each worker
    assert not [path for path in path_at(f"{s3}/ray").iterdir() if path.name.startswith(".")]
