"""Real processes: a stand-in for training that takes no time, then the real command on the lab, killed and resumed."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from offleash.eval.errors import ConfigError
from offleash.train.cli import main
from offleash.train.variants.overlays import find_overlays
from offleash.train.variants.runs import make_runs, reason
from offleash.train.variants.sweep import _tail, run_sweep

STAND_IN = """
import json, pathlib, sys, time
words = sys.argv[1:]
folder = pathlib.Path(words[words.index("--output_dir") + 1])
diary = folder.parents[1] / "diary.txt"
def note(what):
    with diary.open("a") as file:
        file.write(f"{what} {folder.parent.name}\\n")
note("begins")
if (folder.parents[2] / "fail").exists() and folder.parent.name == "hot":
    sys.exit("the stand-in fails")
if (folder.parents[2] / "together").exists() and folder.parent.name != "plain":
    late = time.monotonic() + 120
    while not {"begins hot", "begins cold"} <= set(diary.read_text().splitlines()):
        if time.monotonic() > late:
            sys.exit("the other run did not begin")
        time.sleep(0.05)
note("measures")
metrics = {"pass_at_k/1": 0.25, "support/unit/nscr": -0.125}
record = {"k": 8, "token_entropy": "e", "base_pool": "pool", "base": {}, "steps": {"0": metrics}}
(folder / "support.json").write_text(json.dumps(record))
while (folder.parents[2] / "hang").exists():
    time.sleep(0.05)
(folder / "final").mkdir()
note("ends")
"""


@pytest.fixture
def sweep(tmp_path):
    (tmp_path / "stand_in.py").write_text(STAND_IN)
    (tmp_path / "base.yaml").write_text("task: countdown\nmodel_name_or_path: lab\n")
    for name in ("hot", "cold"):
        (tmp_path / f"{name}.yaml").write_text("learning_rate: 2.0e-3\n")
    overlays = find_overlays([str(tmp_path / f"{name}.yaml") for name in ("hot", "cold")])
    runs = make_runs([tmp_path / "base.yaml"], overlays, [0], tmp_path / "out")
    return runs, tmp_path / "out", (sys.executable, str(tmp_path / "stand_in.py"))


def diary(out: Path) -> list[str]:
    return (out / "diary.txt").read_text().splitlines()


def test_the_first_run_draws_the_base_alone_and_ended_runs_are_left_alone(sweep, capfd):
    runs, out, launch = sweep
    (out.parent / "together").touch()  # hot and cold wait for each other
    assert run_sweep(runs, out, launch, jobs=3) == []
    told = diary(out)
    assert told[:2] == ["begins plain", "measures plain"]
    assert run_sweep(runs, out, launch) == []
    assert diary(out) == told
    said = capfd.readouterr().err
    assert re.search(r"hot seed 0: ended in \d+:\d\d", said)
    assert "pass@1 .250, NSCR -.125" in said
    assert "3 of 3 runs have ended already" in said


def test_of_a_planned_run_that_has_ended_checkpoints_and_samples_are_deleted(sweep):
    runs, out, launch = sweep
    assert run_sweep(runs[:1], out, launch) == []
    folder = runs[0].folder
    for name in ("checkpoint-0", "pools"):
        (folder / name).mkdir()
        (folder / name / "large").touch()
    assert run_sweep(runs[:2], out, launch, numbers_only=True) == []
    assert sorted(path.name for path in folder.iterdir()) == [
        "asked.json",
        "budget.json",
        "final",
        "log.txt",
        "support.json",
    ]
    assert all(run.has_ended for run in runs[:2])
    assert run_sweep(runs[:2], out, launch, numbers_only=True) == []


def test_a_failed_run_is_told_of_and_tried_again_and_the_others_go_on(sweep, capfd):
    runs, out, launch = sweep
    (out.parent / "fail").touch()
    assert [run.name for run in run_sweep(runs, out, launch)] == ["hot seed 0"]
    said = capfd.readouterr().err
    assert "hot seed 0: FAILED" in said
    assert "the stand-in fails" in said
    assert [run.has_ended for run in runs] == [True, False, True]
    assert json.loads((runs[1].folder / "failed.json").read_text())["status"] == 1
    (out.parent / "fail").unlink()
    assert run_sweep(runs, out, launch) == []
    assert not (runs[1].folder / "failed.json").exists()


def test_a_folder_that_cannot_be_written_is_refused_in_one_line(sweep):
    runs, out, launch = sweep
    out.write_text("a file")
    with pytest.raises(ConfigError, match="File exists"):
        run_sweep(runs, out, launch)


def test_the_reason_of_a_failure_is_no_progress_bar(sweep):
    _, out, _ = sweep
    log = out.parent / "log.txt"
    bar = " 40%|####      | 80/200 [00:31<00:46,  2.56it/s]"
    log.write_text(f"offleash: error: no such file\n  0%|   | 0/200\r{bar}\nWARNING: a last word\n{bar}\n")
    assert _tail(log) == ["offleash: error: no such file", "WARNING: a last word"]
    assert reason([*_tail(log), bar]) == "offleash: error: no such file"
    assert reason(["the stand-in fails", bar]) == "the stand-in fails"
    assert reason([bar]) == ""


def children(pid: int) -> list[int]:
    return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def gone(pid: int) -> bool:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        status = Path(f"/proc/{pid}/status")
        try:
            if "State:\tZ" in status.read_text():
                return True
        except OSError:
            return True
        time.sleep(0.05)
    return False


def in_a_process_of_its_own(work: Callable[[], object]) -> int:
    """A fork: the imports of a sweep take longer than all of this."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            os._exit(1)
    return pid


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_run_outlives_its_sweep_and_only_one_sweep_works_in_a_folder(sweep, how):
    runs, out, launch = sweep
    runs = runs[:2]
    (out.parent / "hang").touch()
    pid = in_a_process_of_its_own(lambda: run_sweep(runs, out, launch, jobs=2))
    deadline = time.monotonic() + 60
    while not runs[1].has_begun:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    with pytest.raises(ConfigError, match=str(out)):
        run_sweep(runs, out, launch)
    working = children(pid)
    assert len(working) == 2
    os.kill(pid, how)
    assert os.waitpid(pid, 0)[1] != 0
    assert all(gone(run) for run in working)
    (out.parent / "hang").unlink()
    assert run_sweep(runs, out, launch) == []


def lab_words(place: Path, *more: str) -> list[str]:
    small = {
        **{"train_args": '{"split": "train", "n": 32}', "probe_args": '{"split": "probe", "n": 6, "strict": true}'},
        **{"per_device_train_batch_size": 16, "num_generations": 8, "beta": 0.01, "monitor_k": 8, "monitor_every": 1},
        **{"monitor_score_k": 4, "monitor_batch_size": 64, "save_steps": 1, "max_steps": 2, "use_cpu": "true"},
    }
    flags = [word for key, value in small.items() for word in (f"--{key}", str(value))]
    overlay = place / "hot.yaml"
    overlay.write_text("learning_rate: 5.0e-3\n")
    sweep = ["--config", "lab", "--explorers", str(overlay), "--seeds", "2", "--out", str(place / "out"), *more]
    return ["variants", *sweep, "--", *flags]


@pytest.mark.slow
def test_a_sweep_of_the_lab_killed_midway_continues_and_is_the_sweep_it_would_have_been(tmp_path, capfd):
    for name in ("killed", "whole"):
        (tmp_path / name).mkdir()
    words = lab_words(tmp_path / "killed", "--jobs", "2")
    line = [sys.executable, "-m", "offleash.train.cli", *words]
    process = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    moment = tmp_path / "killed" / "out" / "hot" / "seed-0" / "checkpoint-1"
    deadline = time.monotonic() + 300
    while not moment.exists():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.kill()
    process.wait()
    killed = tmp_path / "killed" / "out"
    assert main([*words[:1], "--report-only", *words[1:]]) == 1
    assert "have no result" in capfd.readouterr().err

    while (status := main(words)) == 2 and "another sweep, or one of its runs, is running" in capfd.readouterr().err:
        assert time.monotonic() < deadline  # a run notices a little later that its sweep is gone
        time.sleep(0.5)
    assert status == 0
    printed = capfd.readouterr()
    assert "hot seed 1: ended" in printed.err
    assert "no verdict follows" in " ".join(printed.out.split())
    assert main(lab_words(tmp_path / "whole")) == 0
    ours, theirs = (json.loads((tmp_path / name / "out" / "report.json").read_text()) for name in ("killed", "whole"))
    for run in (*ours["runs"], *theirs["runs"]):
        assert run.pop("seconds") > 0
    assert ours == theirs
    assert [run["steps"] for run in ours["runs"]] == [[0, 1, 2]] * 4
    last = {(run["variant"], run["seed"]): run["series"][-1] for run in ours["runs"]}
    assert last["plain", 0] != last["hot", 0] != last["hot", 1]
    assert len(list((killed / "base-pools").iterdir())) == 1
    for name in ("report.md", "report.html", "pareto.png", "pareto.svg", "tradeoffs.svg", "tensorboard"):
        assert (killed / name).exists(), name
    assert len(list((killed / "hot" / "seed-1").glob("*.hparams"))) == 1

    (tmp_path / "killed" / "hot.yaml").write_text("learning_rate: 1.0e-3\n")
    assert main(words) == 2
    assert "overlay.learning_rate was 0.005, now 0.001" in capfd.readouterr().err


@pytest.mark.long
def test_forks_train_real_runs_and_their_errors_stay_their_own(tmp_path, capfd):
    """Without --launch, on a CPU: each run in a copy of this process, its output in its log."""
    small = {
        **{"task": "countdown", "model_name_or_path": "lab", "max_steps": 1, "num_generations": 4, "report_to": "none"},
        **{"per_device_train_batch_size": 8, "max_completion_length": 8, "use_cpu": True, "bf16": False},
        **{"train_args": {"split": "train", "n": 8}, "probe_args": {"split": "probe", "n": 2}},
        **{"monitor_k": 2, "monitor_every": 1},
    }
    (tmp_path / "base.yaml").write_text(json.dumps(small))
    (tmp_path / "broken.yaml").write_text("model_name_or_path: no-such-folder/at-all\n")
    overlays = find_overlays([str(tmp_path / "broken.yaml")])
    runs = make_runs([tmp_path / "base.yaml"], overlays, [0], tmp_path / "out")
    before = os.getpid()
    (failed,) = run_sweep(runs, tmp_path / "out")
    assert os.getpid() == before
    (good,) = [run for run in runs if run is not failed]
    assert good.has_ended
    assert failed.overlay.name == "broken"
    assert json.loads((failed.folder / "failed.json").read_text())["status"] != 0
    assert "pass@1" in good.log.read_text()
    assert "support.json" not in capfd.readouterr().out
