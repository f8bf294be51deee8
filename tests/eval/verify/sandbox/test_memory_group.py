"""The control group of a trial: its ceiling binds all processes together, pages of files in memory included."""

import os
import signal
from pathlib import Path

import pytest

from offleash.eval.verify.sandbox.memory_group import enter, memory_group


def _has_groups() -> bool:
    with memory_group(1 << 28) as group:
        return group is not None


needs_groups = pytest.mark.skipif(not _has_groups(), reason="no control group can be made here")


def _end_of(group: Path, size: int, processes: int) -> list[int]:
    """How processes end that each hold so many bytes until all do: 0, or minus the signal that killed them."""
    held_r, held_w = os.pipe()
    release_r, release_w = os.pipe()
    pids = []
    for _ in range(processes):
        if (pid := os.fork()) == 0:
            try:
                os.close(held_r)
                os.close(release_w)
                enter(group)
                held = bytearray(b"x") * size
                os.write(held_w, b"x")
                os.close(held_w)
                os.read(release_r, 1)
                os._exit(len(held) != size)
            finally:
                os._exit(2)
        pids.append(pid)
    os.close(held_w)
    os.close(release_r)
    while os.read(held_r, 1):  # until each of them holds it, or is dead
        pass
    os.close(release_w)
    os.close(held_r)
    return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]


@needs_groups
def test_processes_over_the_ceiling_together_are_killed_and_one_below_it_is_not() -> None:
    with memory_group(64 << 20) as group:
        assert group is not None
        assert _end_of(group, 8 << 20, 1) == [0]
        assert _end_of(group, 512 << 20, 1) == [-signal.SIGKILL]
        assert -signal.SIGKILL in _end_of(group, 48 << 20, 3)
    assert not group.exists()


def test_without_the_right_to_make_one_there_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("offleash.eval.verify.sandbox.memory_group._parents", lambda: iter([tmp_path / "no", tmp_path]))
    with memory_group(1 << 28) as group:
        assert group is None
    assert list(tmp_path.iterdir()) == []
