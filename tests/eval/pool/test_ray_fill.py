"""On a Ray cluster whose workers, driver and head die, a pool ends as it would on one machine."""

import os
import pickle
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import psutil
import pytest

from offleash.eval.errors import EngineError, VerifyError
from offleash.eval.pool.fill import Fill
from offleash.eval.pool.pool import Pool
from offleash.eval.pool.ray_fill import Piece, RayFill, piece_samples, pieces_of
from offleash.eval.pool.ray_worker import Job, Receipt, Worker
from offleash.eval.pool.testing import make_spec
from offleash.eval.problem import Problem, Verdict
from offleash.eval.sampling import Plan, Sampling
from offleash.eval.verify.health import Failures
from offleash.eval.verify.sandbox.workers import own_cores
from offleash.train.cli import main

PLAIN = Sampling(max_new_tokens=20)
WORDS = ["--model", "lab", "--task", "countdown", "--task-args", '{"split": "probe", "n": 8}', "--max-new-tokens", "20"]
RAY = ["--ray", "--ray-workers", "2"]
COLUMNS = ["problem_id", "index", "answer", "correct", "tokens", "completion"]


COINS = """
import time
import numpy as np
from offleash.eval.engines.base import Completion, Drawn
class Coins:
    name, block = "coins", 16
    def __init__(self, source, *, context, pause=0.0):
        self.pause = pause
    def generate(self, requests, sampling):
        for request in requests:
            time.sleep(self.pause)
            drawn_i = np.random.default_rng(request.seed).random(request.n)
            yield Drawn(request, [Completion(f"{x:.15f}", 3, -30.0, "stop") for x in drawn_i])
    def close(self): ...
class Stuck(Coins):
    def generate(self, requests, sampling):
        for drawn in super().generate(requests, sampling):
            yield Drawn(drawn.request, [Completion("0.5", 3, -30.0, "stop")] * drawn.request.n)
class Broken(Coins):
    def generate(self, requests, sampling):
        for drawn in super().generate(requests, sampling):
            if drawn.request.start >= 48:
                raise MemoryError("no more room")
            bad = drawn.request.prompt == [3]
            yield Drawn(drawn.request, [Completion("busy", None, None, "error")] * 16) if bad else drawn
class Busy(Coins):
    def generate(self, requests, sampling):
        for drawn in super().generate(requests, sampling):
            bad = drawn.request.prompt == [3] and drawn.request.start == 80
            yield Drawn(drawn.request, [Completion("busy", None, None, "error")] * 16) if bad else drawn
class BusyOnce(Coins):
    asked = set()
    def generate(self, requests, sampling):
        for drawn in super().generate(requests, sampling):
            bad = drawn.request.seed % 5 == 0 and drawn.request.seed not in self.asked
            self.asked.add(drawn.request.seed)
            yield Drawn(drawn.request, [Completion("busy", None, None, "error")] * 16) if bad else drawn
"""
"""Engines without a model: the completion of a sample is a number that its seed decides."""


class Threshold:
    """A completion is correct if its number is below the problem's rate."""

    name, version = "threshold", "1"
    problems: ClassVar = [Problem(f"p{i}", f"{i}:", str(rate)) for i, rate in enumerate((0.9, 0.3, 0.05, 0.0))]
    fails = False

    def verify(self, problems: Any, completions: Any, truncated: Any = None) -> list[Verdict]:
        status = "error" if self.fails else "ok"
        judged = [float(x) < float(p.gold) for p, x in zip(problems, completions, strict=True)]
        return [Verdict(x[:3], right, status) for x, right in zip(completions, judged, strict=True)]

    def correct_answers(self, problem: Problem) -> None:
        return None


class Here:
    """Stands for `RayWorkers`: one real `Worker` in this process, receipts in a random order and some pieces twice."""

    block, count, at_once, queued = 16, 2, 32, 64

    def __init__(self, folder: Path, engine: str = "Coins", sees_folder: bool = True) -> None:
        module = f"coins_{folder.name.replace('-', '_')}"
        (folder / f"{module}.py").write_text(COINS)
        self.jobs: dict[int, Job | None] = {}
        self.notices = SimpleNamespace(count_start=lambda: 1, job=self.jobs.get)
        self.sees_folder, self.sends_task, self.work_order = sees_folder, True, random.Random(3)
        self.twice = 0.3
        self.worker = Worker(
            f"{module}:{engine}",
            SimpleNamespace(find=lambda: None),  # type: ignore[arg-type]
            64,
            PLAIN,
            {},
            notices=self.notices,
            limit=2,
            folder=str(folder),
            cores=1024,
        )

    def start(self, job: Job, sampling: Sampling) -> None:
        mark = job.mark if self.sees_folder else Path("/nowhere/mark")
        task = job.task if self.sends_task else None
        self.jobs[len(self.jobs) + 1] = Job(job.pool, task, job.prompts, mark, job.versions)

    def work(self, pieces: Iterator[Piece], room: int) -> Iterator[tuple[Piece, Receipt]]:
        every = list(pieces)
        self.work_order.shuffle(every)
        for piece in every:
            sent = pickle.dumps((len(self.jobs), piece.blocks_b3))
            if self.work_order.random() < self.twice:
                self.worker._done(sent)  # by a worker that was taken for dead
            yield piece, pickle.loads(self.worker._done(sent))


def threshold_pool(folder: Path, successes: int | None = None, k: int = 128) -> Pool:
    spec = make_spec(Threshold.problems, k, task="threshold", plan=Plan(successes=successes), engine="coins")
    return Pool.open_or_create(folder, spec, Threshold.problems)


def fill_here(pool: Pool, workers: Any, task: Any = None) -> Any:
    prompts = [[i] for i in range(len(Threshold.problems))]
    return RayFill(pool, task or Threshold(), workers, prompts, PLAIN, Failures()).run(progress=False)


def on_one_machine(folder: Path, tmp_path: Path, successes: int | None) -> Pool:
    engine = Here(tmp_path).worker
    pool, shared = threshold_pool(folder, successes), engine.engine
    local = SimpleNamespace(name="coins", block=16, generate=lambda requests, sampling: shared.generate(requests))
    Fill(pool, Threshold(), local, [[0]] * 4, PLAIN).run(progress=False)
    return pool


# The driver's books, without a cluster


@pytest.mark.parametrize("successes", [None, 3])
@pytest.mark.parametrize("route", ["workers write", "driver writes", "driver verifies"])
def test_whoever_verifies_and_writes_the_pool_is_that_of_one_machine(
    tmp_path: Path, route: str, successes: int | None
) -> None:
    workers = Here(tmp_path, sees_folder=route != "driver writes")
    workers.sends_task = route != "driver verifies"
    pool = threshold_pool(tmp_path / "pool", successes)
    totals = fill_here(pool, workers)
    other = on_one_machine(tmp_path / "other", tmp_path, successes)
    assert rows(tmp_path / "pool") == rows(tmp_path / "other")
    assert totals.samples == len(rows(tmp_path / "pool")) == len(rows(other.path))
    assert totals.pass_at_1 == pytest.approx(0.3125, abs=0.1)
    assert fill_here(threshold_pool(tmp_path / "pool", successes), workers).samples == 0
    for path in pool.parts.paths()[1::2]:
        path.unlink()  # somebody moved damaged parts away
    assert fill_here(threshold_pool(tmp_path / "pool", successes), workers).samples > 0
    assert rows(tmp_path / "pool") == rows(tmp_path / "other")


def test_samples_that_repeat_and_a_verifier_that_fails_never_reach_the_pool(tmp_path: Path) -> None:
    pool = threshold_pool(tmp_path / "pool")
    with pytest.raises(EngineError, match=r"repeat|identical"):
        fill_here(pool, Here(tmp_path, "Stuck"))
    task = Threshold()
    task.fails = True
    with pytest.raises(VerifyError, match="32 of 32 "):
        fill_here(pool, Here(tmp_path), task)
    assert rows(tmp_path / "pool") == []


def test_what_was_drawn_before_a_failure_is_kept_and_the_rest_is_drawn_later(tmp_path: Path) -> None:
    pool = threshold_pool(tmp_path / "pool", k=48)
    with pytest.raises(EngineError, match=r"3 of 12 requests failed \(busy\)"):
        fill_here(pool, Here(tmp_path, "Broken"))
    assert len(rows(tmp_path / "pool")) == 3 * 48
    assert fill_here(threshold_pool(tmp_path / "pool", k=48), Here(tmp_path)).samples == 48
    with pytest.raises(EngineError, match="MemoryError: no more room"):
        fill_here(threshold_pool(tmp_path / "pool", k=64), Here(tmp_path, "Broken"))


@pytest.mark.parametrize("seed", range(2))
def test_a_stopping_plan_draws_again_all_that_was_moved_away(tmp_path: Path, seed: int) -> None:
    workers = Here(tmp_path)
    fill_here(threshold_pool(tmp_path / "pool", 3, k=4096), workers)
    whole = rows(tmp_path / "pool")
    move_parts_away(tmp_path / "pool", random.Random(seed))
    lost = len(whole) - len(rows(tmp_path / "pool"))
    assert fill_here(threshold_pool(tmp_path / "pool", 3, k=4096), workers).samples == lost > 0
    assert rows(tmp_path / "pool") == whole


@pytest.mark.parametrize("route", ["workers write", "driver writes", "driver verifies"])
@pytest.mark.parametrize("successes", [None, 3])
def test_requests_that_fail_are_asked_once_more(tmp_path: Path, route: str, successes: int | None) -> None:
    workers = Here(tmp_path, "BusyOnce", sees_folder=route != "driver writes")
    workers.sends_task, workers.twice = route != "driver verifies", 0.0
    fill_here(threshold_pool(tmp_path / "pool", successes), workers)
    on_one_machine(tmp_path / "other", tmp_path, successes)
    assert rows(tmp_path / "pool") == rows(tmp_path / "other")


@pytest.mark.parametrize("successes", [None, 3])
def test_of_a_problem_that_goes_on_failing_what_comes_before_is_kept_and_of_the_others_all(
    tmp_path: Path, successes: int | None
) -> None:
    with pytest.raises(EngineError, match=r"1 of \d+ requests failed \(busy\)"):
        fill_here(threshold_pool(tmp_path / "pool", successes), Here(tmp_path, "Busy"))
    on_one_machine(tmp_path / "other", tmp_path, successes)
    lost = range(80, 96 if successes is None else 128)
    assert rows(tmp_path / "pool") == [
        row for row in rows(tmp_path / "other") if row["problem_id"] != "p3" or row["index"] not in lost
    ]


def test_a_pool_that_is_not_complete_at_the_end_is_an_error(tmp_path: Path) -> None:
    workers = Here(tmp_path)
    workers.work = lambda pieces, room: iter(())  # type: ignore[method-assign]
    with pytest.raises(EngineError, match="incomplete"):
        fill_here(threshold_pool(tmp_path / "pool"), workers)


def test_a_piece_is_a_part_of_a_sensible_size_and_the_pieces_are_all_of_the_work() -> None:
    blocks_b3 = np.array([(p, start, 16) for start in range(0, 160, 16) for p in range(7)], dtype=np.int32)
    pieces = list(pieces_of(blocks_b3, 100))
    assert np.array_equal(np.concatenate([piece.blocks_b3 for piece in pieces]), blocks_b3)
    assert {piece.samples for piece in pieces[:-1]} <= {96, 112}
    assert piece_samples(10**7, 64, 256, 1024) == 1024
    assert piece_samples(10**7, 64, 256, 32_768) == 256  # what vLLM runs at once
    assert piece_samples(10**8, 64, 256, 32_768) == 1526  # 65,536 parts
    assert piece_samples(10**8, 64, 256, 20) == 16_384
    assert piece_samples(4096, 2, 64, 20) == 256  # eight pieces for each worker


# A real cluster


def sample(folder: Path, *words: str, code: str = "") -> "subprocess.Popen[str]":
    """The command in a process of its own; `code` is a module `mine` for it and its workers."""
    (folder.parent / "mine.py").write_text(code)
    env = environment(folder.parent)
    line = [sys.executable, "-m", "offleash.train.cli", "sample", *WORDS, "--pool", str(folder), *words]
    return subprocess.Popen(line, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def environment(folder: Path) -> dict[str, str]:
    """With the modules of a folder, and no other Ray."""
    modules = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    env = {**os.environ, "PYTHONPATH": modules, "OMP_NUM_THREADS": "1", "RAY_worker_niceness": "0"}
    env.pop("RAY_ADDRESS", None)
    return env


def ended(process: "subprocess.Popen[str]") -> tuple[int, str, str]:
    out, err = process.communicate(timeout=900)
    return process.returncode, out, err


def wait_for(what: Callable[[], Any], seconds: float = 600.0) -> Any:
    until = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < until, "it never came"
        time.sleep(0.05)
    return found


def parts(folder: Path, count: int) -> bool:
    return len(list(folder.glob("samples-*.parquet"))) >= count


def workers(driver: int) -> set[int]:
    below = {process.pid for process in psutil.Process(driver).children(recursive=True)}
    return {pid for pid, line in processes().items() if pid in below and "MapWorker" in line}


def rays() -> set[int]:
    return {pid for pid, line in processes().items() if "raylet" in line or "gcs_server" in line or "ray::" in line}


def processes() -> dict[int, str]:
    """Command lines; a process that is gone or a zombie has none."""
    return {process.pid: " ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])}


def move_parts_away(folder: Path, rng: random.Random) -> None:
    """About half of them, in the order of a stopping plan's rounds: its first samples and its last."""
    for path in Pool.open(folder).parts.paths()[1:]:
        if rng.random() < 0.5:
            path.unlink()


def rows(folder: Path) -> list[dict[str, Any]]:
    pool = Pool.open(folder)
    assert pool.duplicates() == 0
    return list(pool.read(COLUMNS).to_pylist())


@pytest.fixture(scope="module")
def whole(tmp_path_factory: Any) -> Path:
    """Undisturbed, without Ray."""
    folder = tmp_path_factory.mktemp("here") / "pool"
    assert ended(sample(folder, "--k", "512"))[0] == 0
    return folder


def begun(pool: Path) -> "tuple[subprocess.Popen[str], set[int]]":
    """A run on Ray that has written two parts, and the processes of other Rays."""
    pytest.importorskip("ray")
    others = rays()
    process = sample(pool, "--k", "512", *RAY)
    wait_for(lambda: parts(pool, 2))
    return process, others


@pytest.mark.slow
def test_two_workers_one_of_them_killed_draw_the_very_pool_of_one_machine(tmp_path: Path, whole: Path) -> None:
    process, others = begun(tmp_path / "pool")
    before = workers(process.pid)
    os.kill(min(before), signal.SIGKILL)
    after = wait_for(lambda: workers(process.pid) - before)
    code, out, err = ended(process)
    assert code == 0, err
    assert len(before) == 2
    assert len(after) == 1
    assert "drew 4,096 samples" in out
    assert rows(tmp_path / "pool") == rows(whole)
    assert "ray" not in err.lower()  # only our own progress bar
    wait_for(lambda: not rays() - others)


@pytest.mark.slow
def test_after_kill_9_of_the_driver_the_same_command_goes_on(tmp_path: Path, whole: Path) -> None:
    process, others = begun(tmp_path / "pool")
    process.send_signal(signal.SIGKILL)
    ended(process)
    kept = len(rows(tmp_path / "pool"))
    assert 0 < kept < 4096
    wait_for(lambda: not rays() - others)
    code, out, err = ended(sample(tmp_path / "pool", "--k", "512", *RAY))
    assert code == 0, err
    assert f"drew {4096 - kept:,} samples" in out
    assert rows(tmp_path / "pool") == rows(whole)


@pytest.mark.slow
def test_a_stopping_plan_draws_all_its_rounds_with_the_same_workers_which_share_the_cores(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    words = ["--k", "256", "--plan", "until", "--successes", "3", "--engine", "mine:Counted"]
    code = (
        "import os, pathlib\n"
        "from offleash.eval.engines.transformers_engine import TransformersEngine\n"
        "from offleash.eval.verify.sandbox.workers import own_cores\n"
        "class Counted(TransformersEngine):\n"
        "    def __init__(self, source, *, context):\n"
        "        super().__init__(source, context=context)\n"
        "        (pathlib.Path(__file__).parent / f'loaded-{os.getpid()}').write_text(str(own_cores()))\n"
    )
    assert ended(sample(tmp_path / "here", *words, code=code))[0] == 0
    done, _, err = ended(sample(tmp_path / "ray", *words, *RAY, code=code))
    assert done == 0, err
    assert rows(tmp_path / "ray") == rows(tmp_path / "here")
    all_cores, share = str(own_cores()), str(max(1, own_cores() // 2))
    assert sorted(path.read_text() for path in tmp_path.glob("loaded-*")) == sorted([all_cores, share, share])


def victim(driver: int, kind: str) -> int:
    names = {"worker": "MapWorker", "head": "gcs_server"}
    below = psutil.Process(driver).children(recursive=True)
    found = [driver] if kind == "driver" else [p.pid for p in below if names[kind] in " ".join(p.cmdline())]
    return random.choice(found)


@pytest.mark.slow
def test_worker_driver_and_head_killed_at_random_the_pool_ends_complete_and_nothing_is_doubled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray")
    monkeypatch.setenv("RAY_gcs_rpc_server_reconnect_timeout_s", "5")
    words = ["--k", "4096", "--engine", "mine:Coins"]
    assert ended(sample(tmp_path / "here", *words, code=COINS))[0] == 0
    ray = [*words, *RAY, "--engine-args", '{"pause": 0.02}']
    kinds = random.sample(["worker", "driver", "head"], 3)
    print("killed:", *kinds)
    for kind in kinds:
        had, others = len(list((tmp_path / "pool").glob("samples-*"))), rays()
        process = sample(tmp_path / "pool", *ray, code=COINS)
        wait_for(lambda process=process, had=had: process.poll() is not None or parts(tmp_path / "pool", had + 2))
        time.sleep(random.random())
        os.kill(victim(process.pid, kind), signal.SIGKILL)
        if kind == "worker":  # the run goes on
            wait_for(lambda had=had: parts(tmp_path / "pool", had + 6))
            process.send_signal(signal.SIGKILL)
        assert ended(process)[0] != 0
        wait_for(lambda others=others: not rays() - others)
    assert 0 < len(rows(tmp_path / "pool")) < 8 * 4096
    code, _, err = ended(sample(tmp_path / "pool", *words, *RAY, code=COINS))
    assert code == 0, err
    assert rows(tmp_path / "pool") == rows(tmp_path / "here")
    assert len(rows(tmp_path / "pool")) == 8 * 4096


RATES = """
from offleash.eval.problem import Problem, Verdict
class Rates:
    name, version = "rates", "1"
    def __init__(self, split, n):
        self.problems = [Problem(f"p{i}", f"{i}", str(2.0 ** (-2 * i))) for i in range(n)]
    def verify(self, problems, completions, truncated=None):
        judged = [x[:2] == "0." and float(x) < float(p.gold) for x, p in zip(completions, problems, strict=True)]
        return [Verdict(x[:3], right, "ok") for x, right in zip(completions, judged, strict=True)]
    def correct_answers(self, problem):
        return None
"""
"""A task for the engines above: each problem is four times as hard as the one before."""


@pytest.mark.slow
def test_a_stopping_plan_ends_as_on_one_machine_with_workers_killed_at_random_and_parts_moved_away(
    tmp_path: Path,
) -> None:
    pytest.importorskip("ray")
    code = COINS + RATES
    words = ["--task", "mine:Rates", "--k", "4096", "--plan", "until", "--successes", "3", "--engine", "mine:Coins"]
    ray = [*words, *RAY, "--engine-args", '{"pause": 0.02}']
    assert ended(sample(tmp_path / "here", *words, code=code))[0] == 0
    seed = random.randrange(10**6)
    print("seed:", seed)
    rng = random.Random(seed)
    for moved in (False, True):
        if moved:
            move_parts_away(tmp_path / "pool", rng)
        wanted, others = len(list((tmp_path / "pool").glob("samples-*"))) + rng.randint(1, 20), rays()
        process = sample(tmp_path / "pool", *ray, code=code)
        wait_for(lambda process=process, wanted=wanted: process.poll() is not None or parts(tmp_path / "pool", wanted))
        os.kill(victim(process.pid, "worker"), signal.SIGKILL)
        exit_code, out, err = ended(process)
        assert exit_code == 0, err
        assert "complete: " in out
        assert rows(tmp_path / "pool") == rows(tmp_path / "here")
        wait_for(lambda others=others: not rays() - others)


ON_GPUS = """
import logging, os, sys
from contextlib import closing
from pathlib import Path
import ray
from offleash.eval.engines.model import resolve_model
from offleash.eval.pool.pool import Pool
from offleash.eval.pool.ray_fill import RayFill, RayWorkers
from offleash.eval.pool.testing import make_spec
from offleash.eval.sampling import Sampling
from offleash.eval.verify.health import Failures
from mine import Rates
task = Rates("", 4)
pool = Pool.create(sys.argv[1], make_spec(task.problems, 256, task="rates", engine="coins"), task.problems)
ray.init(num_cpus=6, num_gpus=2, log_to_driver=False, logging_level=logging.ERROR)
with closing(RayWorkers("mine:Placed", resolve_model("lab"), context=64)) as workers:
    RayFill(pool, task, workers, [[1]] * 4, Sampling(max_new_tokens=20), Failures()).run(progress=False)
"""
PLACED = """
import os, pathlib
class Placed(Coins):
    def __init__(self, source, *, context):
        super().__init__(source, context=context)
        mine = [os.environ[name] for name in ("CUDA_VISIBLE_DEVICES", "OFFLEASH_CORES")]
        (pathlib.Path(__file__).parent / f"placed-{os.getpid()}").write_text(" ".join(mine))
"""


@pytest.mark.slow
def test_each_gpu_has_an_engine_and_each_engine_a_share_of_the_cpus(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    (tmp_path / "mine.py").write_text(COINS + RATES + PLACED)
    line = [sys.executable, "-c", ON_GPUS, str(tmp_path / "pool")]
    done = subprocess.run(line, env=environment(tmp_path), cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert len(rows(tmp_path / "pool")) == 4 * 256
    assert sorted(path.read_text() for path in tmp_path.glob("placed-*")) == ["0 3", "1 3"]


FAILING = """
import os
from offleash.eval.engines.transformers_engine import TransformersEngine
class Fails(TransformersEngine):
    def generate(self, requests, sampling):
        for drawn in super().generate(requests, sampling):
            if drawn.request.start >= 64:
                raise MemoryError("no more room")
            yield drawn
class Dies(TransformersEngine):
    def __init__(self, source, *, context):
        os._exit(1)
"""


@pytest.mark.slow
def test_an_error_in_a_worker_is_one_line_and_what_was_drawn_is_kept(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    process = sample(tmp_path / "pool", "--k", "128", "--engine", "mine:Fails", *RAY, code=FAILING)
    code, _, err = ended(process)
    assert code == 2
    assert "MemoryError: no more room." in err.splitlines()[-1]
    assert len(rows(tmp_path / "pool")) >= 64
    assert "Traceback" not in err


@pytest.mark.slow
def test_workers_that_only_die_end_the_run(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    words = ["--k", "64", "--engine", "mine:Dies", "--ray", "--ray-workers", "1"]
    code, _, err = ended(sample(tmp_path / "pool", *words, code=FAILING))
    assert code == 2
    assert "workers were started without a single answer" in err.splitlines()[-1]


def test_without_ray_one_line_says_what_to_install(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    assert main(["sample", *WORDS, "--k", "4", "--pool", str(tmp_path / "pool"), "--ray"]) == 2
    error = capsys.readouterr().err
    assert "pip install 'offleash[ray]'" in error
    assert len(error.strip().splitlines()) == 1
    assert not (tmp_path / "pool").exists()


def test_flags_that_do_not_go_together_are_refused(tmp_path: Path, capsys: Any) -> None:
    assert main(["sample", *WORDS, "--k", "4", "--pool", str(tmp_path / "pool"), "--ray-workers", "2"]) == 2
    assert "ray_workers" in capsys.readouterr().err
    served = ["--model", "http://127.0.0.1:9/v1", "--task", "countdown"]
    assert main(["sample", *served, "--k", "4", "--pool", str(tmp_path / "pool"), "--ray"]) == 2
    assert "server" in capsys.readouterr().err
