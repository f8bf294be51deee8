"""A server and a disk that fail at random: each failure is one line, and what is left in the end is the sound pool."""

import errno
import json
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from offleash.eval.pool.pool import Pool
from offleash.train.cli import main
from tests.chaos.faulty_server import FaultyServer

COLUMNS = ["problem_id", "index", "answer", "correct", "tokens", "logprob", "completion"]
TRIES = 200
ERRORS = (errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EROFS)

Attempt = Callable[[list[str]], int]


@pytest.fixture
def attempt(capsys: pytest.CaptureFixture[str]) -> Attempt:
    """Run a command: it succeeds, or fails with one line."""

    def run(words: list[str]) -> int:
        capsys.readouterr()
        code = main(words)
        said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("offleash: error: ")]
        assert (code, len(said)) in ((0, 0), (2, 1))
        return code

    return run


def command(server: FaultyServer, pool: Path, *words: str) -> list[str]:
    quick = json.dumps({"concurrency": 8, "timeout": 1.0, "retries": 2, "pause": 0.01})
    task = ["--task", "countdown", "--task-args", '{"split": "probe", "n": 6}', "--k", "96", "--max-new-tokens", "20"]
    return ["sample", "--model", server.url, *task, "--engine-args", quick, "--pool", str(pool), *words]


def content(pool: Path) -> list[dict[str, Any]]:
    return Pool.open(pool).read(COLUMNS).to_pylist()


@pytest.mark.parametrize("plan", [[], ["--plan", "until", "--successes", "2"]])
def test_a_broken_server_gives_the_pool_of_a_sound_one(
    tmp_path: Path, chaos: random.Random, server: FaultyServer, attempt: Attempt, plan: list[str]
) -> None:
    assert attempt(command(server, tmp_path / "sound", *plan)) == 0
    server.misbehave(chaos.random(), rate=0.5)
    codes = [2]
    while codes[-1] != 0:
        codes.append(attempt(command(server, tmp_path / "broken", "--save-every", "0.05", *plan)))
        assert len(codes) < TRIES
    assert content(tmp_path / "broken") == content(tmp_path / "sound")
    assert Pool.open(tmp_path / "broken").duplicates() == 0


class Disk:
    """Writing, flushing, renaming and opening folders, each of which fails now and then below one folder."""

    def __init__(self, chance: random.Random, rate: float) -> None:
        self.chance, self.rate, self.failures = chance, rate, 0

    def may_fail(self) -> None:
        if self.chance.random() < self.rate:
            self.failures += 1
            number = self.chance.choice(ERRORS)
            raise OSError(number, os.strerror(number))

    def install(self, patch: pytest.MonkeyPatch, folder: Path) -> None:
        open_file, replace, fsync, mkdir = Path.open, Path.replace, os.fsync, Path.mkdir
        disk = self

        class HalfWritten:
            def __init__(self, file: Any) -> None:
                self.file = file

            def write(self, data: Any) -> int:
                self.file.write(data[: len(data) // 2])
                disk.may_fail()
                return int(self.file.write(data[len(data) // 2 :]))

            def __enter__(self) -> "HalfWritten":
                return self

            def __exit__(self, *error: object) -> None:
                self.file.close()

            def __getattr__(self, name: str) -> Any:
                return getattr(self.file, name)

        def is_ours(path: Path) -> bool:
            return folder in path.parents

        def faulty_open(path: Path, mode: str = "r", *rest: Any, **named: Any) -> Any:
            file = open_file(path, mode, *rest, **named)
            return HalfWritten(file) if is_ours(path) and set(mode) & set("wxa") else file

        def faulty_replace(path: Path, target: Any) -> Path:
            if is_ours(path):
                disk.may_fail()
            return replace(path, target)

        def faulty_fsync(handle: int) -> None:
            disk.may_fail()
            fsync(handle)

        def faulty_mkdir(path: Path, *rest: Any, **named: Any) -> None:
            if is_ours(path) and not path.exists():
                disk.may_fail()
            mkdir(path, *rest, **named)

        patch.setattr(Path, "open", faulty_open)
        patch.setattr(Path, "replace", faulty_replace)
        patch.setattr(os, "fsync", faulty_fsync)
        patch.setattr(Path, "mkdir", faulty_mkdir)


@pytest.fixture
def disk(chaos: random.Random, tmp_path: Path) -> Iterator[Disk]:
    """Fails below `tmp_path/disk`, once it has a rate."""
    made = Disk(chaos, rate=0.0)
    with pytest.MonkeyPatch.context() as patch:
        made.install(patch, tmp_path / "disk")
        yield made


def repeat(attempt: Attempt, words: list[str], folder: Path) -> None:
    codes = [2]
    while codes[-1] != 0:
        codes.append(attempt(words))
        assert not list(folder.rglob(".*.tmp")), "a failed writer left something behind"
        assert len(codes) < TRIES


def test_a_disk_that_fails_leaves_only_whole_parts(
    tmp_path: Path, server: FaultyServer, attempt: Attempt, disk: Disk
) -> None:
    assert attempt(command(server, tmp_path / "sound")) == 0
    pool, disk.rate = tmp_path / "disk" / "pool", 0.15
    repeat(attempt, command(server, pool, "--save-every", "0"), tmp_path / "disk")
    assert disk.failures
    assert content(pool) == content(tmp_path / "sound")
    assert Pool.open(pool).duplicates() == 0


def test_an_import_or_export_on_such_a_disk_is_whole_or_absent(
    tmp_path: Path, server: FaultyServer, attempt: Attempt, disk: Disk
) -> None:
    sound, folder = tmp_path / "sound", tmp_path / "disk"
    assert attempt(command(server, sound)) == 0
    disk.rate = 0.002  # of a write for each row
    repeat(attempt, ["export", str(sound), "--to", str(folder / "out.jsonl")], folder)
    disk.rate = 0.15
    repeat(attempt, ["import", str(folder / "out.jsonl"), "--pool", str(folder / "again")], folder)
    by_problem = [sorted(content(pool), key=lambda row: row["problem_id"]) for pool in (folder / "again", sound)]
    assert by_problem[0] == by_problem[1]  # a JSONL file keeps no order of problems
