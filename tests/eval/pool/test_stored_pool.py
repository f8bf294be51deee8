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

import pyarrow
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


AZURE = "container@account.dfs.core.windows.net"
PLACES = {
    "s3://bucket/pools/a": ("s3", "bucket/pools/a"),
    "s3://bucket": ("s3", "bucket"),
    "gs://bucket/pools/a": ("gcs", "bucket/pools/a"),
    "gcs://bucket/pools/a": ("gcs", "bucket/pools/a"),
    f"abfs://{AZURE}/pools/a": ("abfs", "container/pools/a"),
    f"abfss://{AZURE}/pools/a": ("abfs", "container/pools/a"),
    f"abfs://{AZURE}": ("abfs", "container"),
    "abfs://account.dfs.core.windows.net/container/pools/a": ("abfs", "container/pools/a"),
    "memory://name/pools/a": ("py::fsspec+memory", "name/pools/a"),
    "s3://bucket/as it is%20/ü": ("s3", "bucket/as it is%20/ü"),
}


@pytest.mark.parametrize(("url", "place"), PLACES.items())
def test_a_url_is_a_filesystem_and_the_path_in_it(
    url: str, place: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")  # otherwise AWS is asked for the bucket's region
    _system.cache_clear()
    path = path_at(url)
    assert isinstance(path, StoragePath)
    assert (path.system.type_name, path.key) == place
    assert (str(path / "x"), (path / "x").key) == (f"{url}/x", f"{place[1]}/x")
    _system.cache_clear()


def test_a_url_of_a_file_is_a_path_of_this_machine(tmp_path: Path, capsys: Any) -> None:
    assert path_at("file:///abs/a%20pool") == Path("/abs/a pool")
    make_pool(f"file://{tmp_path}/pool", [1, 0], 4)
    assert Pool.open(tmp_path / "pool").hits().correct_p.tolist() == [1, 0]
    assert main(["export", f"file://{tmp_path}/pool", "--to", f"file://{tmp_path}/x.jsonl"]) == 0
    assert (tmp_path / "x.jsonl").exists()


@pytest.mark.parametrize(
    ("url", "named"),
    {
        "nonsense://bucket/pool": "nonsense://bucket .*s3",
        "ftp://host/pool": "ftp://host .*s3",
        "sftp://host/pool": "sftp://host .*s3",
        "hdfs://namenode:9000/pool": "hdfs://namenode:9000 .*s3",
        "http://host/pool": "http://host .*s3",
        "file://relative/pool": "file://relative .*s3",
        "az://container/pool": "az://container .*abfs",
        "abfs://container/pool": "abfs://container .*abfs://container@account\\.",
        "s3://": "s3:// names no bucket",
        "s3://name:secret@bucket/pool": "password",
        "s3://bucket/pool?region=here": "question mark",
    }.items(),
)
def test_a_place_that_cannot_hold_a_pool_is_refused_in_one_line(
    url: str, named: str, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT", raising=False)
    with pytest.raises(ConfigError, match=named) as error:
        Pool.open(url)
    with pytest.raises(ConfigError, match=named):
        make_pool(url, [1], 2)
    assert "secret" not in str(error.value)
    assert main(["compare", url, url]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


@pytest.fixture
def azure(monkeypatch: pytest.MonkeyPatch) -> str:
    """As on Azure, whose paths do not begin with the URL's authority; kept in memory."""
    system, name = path_at("memory://x").system, uuid.uuid4().hex
    monkeypatch.setattr("offleash.eval.storage._system", lambda scheme, authority: (system, name))
    return f"abfs://{AZURE}"


def test_on_azure_a_file_is_written_under_a_hidden_name_and_moved(azure: str, monkeypatch: pytest.MonkeyPatch) -> None:
    written, write = list[str](), StoragePath.write_bytes

    def noted(path: StoragePath, data: Any) -> int:
        written.append(path.name)
        return write(path, data)

    monkeypatch.setattr(StoragePath, "write_bytes", noted)
    make_pool(f"{azure}/made", [1, 0], 4)
    assert written
    assert all(name.startswith(".") for name in written)
    life_of_a_pool(azure)
    assert not [path for path in path_at(azure).rglob("*") if path.name.endswith(".tmp")]


def test_storage_that_cannot_move_an_object_is_an_error_that_leaves_nothing(
    azure: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def move(handler: Any, source: str, target: str) -> None:
        raise pyarrow.ArrowNotImplementedError("Move() is not implemented for accounts without a namespace")

    monkeypatch.setattr(pyarrow.fs.FSSpecHandler, "move", move)
    with pytest.raises(PoolError, match="without a namespace"):
        make_pool(f"{azure}/made", [1, 0], 4)
    assert not [path for path in path_at(azure).rglob("*") if path.is_file()]


def test_commands_that_write_to_this_machine_refuse_storage(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
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
