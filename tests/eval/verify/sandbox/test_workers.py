"""The worker pool: deadlines that hold anywhere, and no process left behind."""

import asyncio
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from offleash.eval.errors import VerifyError
from offleash.eval.verify.sandbox import confine
from offleash.eval.verify.sandbox.workers import WorkerPool, own_cores

JOBS = textwrap.dedent(
    """
    import os, sys, time

    def run(job):
        if job == "hang":
            while True: pass
        if job == "sleep": time.sleep(3600)
        if job == "ignore signals":
            import signal
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGALRM): signal.signal(number, signal.SIG_IGN)
            while True: pass
        if job == "crash": os.kill(os.getpid(), 11)
        if job == "exit": os._exit(0)
        if job == "raise": raise KeyError("poison")
        if job == "system exit": raise SystemExit(0)
        if job == "eat memory": return len(bytearray(3 << 30))
        if job == "fork": return os.fork()
        if job == "leave a reply":
            for fd in range(3, 40):
                try: os.write(fd, b'\\x00\\x00\\x00\\x0a{"ok": 66}' * 2)
                except OSError: pass
            return 0
        if job == "pid": return os.getpid()
        if job == "environment": return dict(os.environ)
        if job == "forge":
            for fd in range(3, 40):
                try: os.write(fd, b"\\xff\\xff\\xff\\xffgarbage")
                except OSError: pass
            time.sleep(3600)
        if job == "nested": return eval("[" * 60 + "]" * 60)
        if isinstance(job, dict): time.sleep(job["seconds"]); return job["seconds"]
        return job
    """
)
FAST = 1.5  # a job's deadline here; what is asserted about time is far more generous


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "pool_jobs.py").write_text(JOBS)
    tmp_path.chmod(0o755)  # pytest's are private; as root, workers run as nobody where they can
    monkeypatch.syspath_prepend(str(tmp_path))
    return "pool_jobs:run"


@pytest.fixture
def pool(jobs: str) -> Iterator[WorkerPool]:
    with closing(WorkerPool(jobs, workers=2, job_seconds=FAST)) as made:
        yield made


def children() -> set[int]:
    return {child.pid for child in psutil.Process().children(recursive=True)}


def test_results_come_back_in_order(pool: WorkerPool) -> None:
    values: list[object] = [3, "text", None, [1, [2]], {"seconds": 0.0}, "\ud800 lone surrogate", "\x00"]
    outcomes = pool.map(values)
    assert [outcome.status for outcome in outcomes] == ["ok"] * len(values)
    assert [outcome.value for outcome in outcomes][:4] == values[:4]
    assert pool.map([]) == []


def test_poison_costs_only_its_own_verdict(pool: WorkerPool) -> None:
    poison = ["hang", "crash", "raise", "exit", "system exit", "forge", "eat memory", "ignore signals"]
    mixed = [job for one in poison for job in (one, "good")]
    started = time.monotonic()
    outcomes = pool.map(mixed)
    assert time.monotonic() - started < 60
    assert all(outcome.status == "ok" and outcome.value == "good" for outcome in outcomes[1::2])
    found = dict(zip(poison, outcomes[::2], strict=True))
    assert {name: outcome.status for name, outcome in found.items()} == {
        "hang": "timeout",
        "crash": "error",
        "raise": "error",
        "exit": "error",
        "system exit": "error",
        "forge": "error",
        "eat memory": "error",
        "ignore signals": "timeout",
    }
    assert "poison" in found["raise"].message
    assert "MemoryError" in found["eat memory"].message


def test_a_deadline_holds_in_another_thread_and_leaves_its_alarms_alone(pool: WorkerPool) -> None:
    handler = signal.getsignal(signal.SIGALRM)
    outcomes = []
    thread = threading.Thread(target=lambda: outcomes.extend(pool.map(["hang", 1])))
    thread.start()
    thread.join(30)
    assert not thread.is_alive()
    assert [outcome.status for outcome in outcomes] == ["timeout", "ok"]
    assert signal.getsignal(signal.SIGALRM) is handler


def test_a_deadline_holds_inside_asyncio_and_the_loop_keeps_turning(pool: WorkerPool) -> None:
    async def scenario() -> tuple[list[str], int]:
        turns = 0
        task = asyncio.ensure_future(asyncio.to_thread(pool.map, ["sleep", 2]))
        while not task.done():
            turns += 1
            await asyncio.sleep(0.05)
        blocking = pool.map(["hang"])  # even called straight from the loop
        return [outcome.status for outcome in [*task.result(), *blocking]], turns

    statuses, turns = asyncio.run(asyncio.wait_for(scenario(), 60))
    assert statuses == ["timeout", "ok", "timeout"]
    assert turns > 5


def test_threads_that_share_a_pool_get_their_own_results(pool: WorkerPool) -> None:
    results: dict[int, list[object]] = {}

    def use(number: int) -> None:
        results[number] = [outcome.value for outcome in pool.map([number * 100 + i for i in range(20)])]

    threads = [threading.Thread(target=use, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert results == {number: [number * 100 + i for i in range(20)] for number in range(6)}


def test_workers_are_replaced_after_their_share_of_jobs(jobs: str) -> None:
    with closing(WorkerPool(jobs, workers=1, recycle=3)) as pool:
        pids = [outcome.value for outcome in pool.map(["pid"] * 9)]
    assert len(set(pids)) == 3
    assert pids[0] == pids[1] == pids[2] != pids[3]


def test_a_worker_sees_no_secret_and_starts_no_process(
    pool: WorkerPool, monkeypatch: pytest.MonkeyPatch, jobs: str
) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "hunter2")
    environment, forked = pool.map(["environment", "fork"])
    assert "SECRET_TOKEN" not in environment.value
    assert environment.value["OMP_NUM_THREADS"] == "1"
    if confine.unavailable() is None or os.getuid() != 0:
        assert forked.status == "error"


def test_a_job_cannot_answer_for_the_next_one(jobs: str) -> None:
    with closing(WorkerPool(jobs, workers=1)) as pool:
        assert pool.map(["leave a reply"])[0].status in ("ok", "error")
        assert pool.map([5])[0].value == 5


def test_closing_ends_every_process_and_the_pool_can_be_used_again(jobs: str) -> None:
    before = children()
    pool = WorkerPool(jobs, workers=2, job_seconds=FAST)
    pool.map([1, 2])
    assert children() > before
    pool.close()
    assert children() <= before
    assert pool.map([3])[0].value == 3
    pool.close()
    assert children() <= before


def test_a_pool_that_is_forgotten_leaves_no_process(jobs: str) -> None:
    before = children()
    WorkerPool(jobs).map([1])
    deadline = time.monotonic() + 20
    while children() - before and time.monotonic() < deadline:
        time.sleep(0.1)
    assert children() <= before


@pytest.mark.parametrize("ending", ["sys.exit(0)", "os.kill(os.getpid(), 9)", "raise RuntimeError", "time.sleep(60)"])
def test_workers_die_with_the_process_that_owns_them(jobs: str, tmp_path: Path, ending: str) -> None:
    marker = f"offleash-owner-{os.getpid()}-{abs(hash(ending))}"
    script = textwrap.dedent(
        f"""
        import os, sys, threading, time
        sys.path.insert(0, {str(tmp_path)!r})
        from offleash.eval.verify.sandbox.workers import WorkerPool
        pool = WorkerPool("pool_jobs:run", workers=2, job_seconds=600)
        pool._settings["marker"] = {marker!r}
        pool.map([1, 2])
        threading.Thread(target=pool.map, args=(["hang", "sleep"],), daemon=True).start()
        time.sleep(0.5)
        print("running", flush=True)
        {ending}
        """
    )
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"running\n"
        started = psutil.Process(owner.pid).children(recursive=True) if ending.startswith("time") else []
        if ending.startswith("time"):
            assert len(started) >= 3
            owner.kill()
        owner.wait(60)
    deadline = time.monotonic() + 30
    while (left := marked(marker) + [p for p in started if p.is_running()]) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert left == []


def marked(marker: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        line = " ".join(process.info["cmdline"] or [])
        if marker in line and "pool_jobs:run" in line and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(process)
    return found


def test_a_forked_copy_of_the_pool_does_not_disturb_its_owner(pool: WorkerPool) -> None:
    pool.map([1])
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            value = pool.map([7])[0].value
            pool.close()
            os.write(writer, str(value).encode())
        finally:
            os._exit(0)
    os.close(writer)
    os.waitpid(pid, 0)
    assert os.read(reader, 10) == b"7"
    os.close(reader)
    assert pool.map([2])[0].value == 2


def test_a_helper_process_that_was_killed_is_replaced(pool: WorkerPool) -> None:
    pool.map([1])
    assert pool._zygote is not None
    pool._zygote.process.kill()
    pool._zygote.process.wait()
    assert [outcome.value for outcome in pool.map([2, 3, 4])][-1] == 4


def test_a_pool_works_beside_torch_and_its_threads(pool: WorkerPool) -> None:
    torch = pytest.importorskip("torch")
    (torch.ones(600, 600) @ torch.ones(600, 600)).sum().item()
    stop = threading.Event()
    threads = [threading.Thread(target=stop.wait) for _ in range(30)]
    for thread in threads:
        thread.start()
    try:
        assert [outcome.status for outcome in pool.map([1, "hang", 2])] == ["ok", "timeout", "ok"]
    finally:
        stop.set()
    (torch.ones(600, 600) @ torch.ones(600, 600)).sum().item()


def test_libraries_that_cannot_be_shown_to_a_sandbox_are_used_without_one_and_it_says_so(
    jobs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if confine.unavailable() is not None:
        pytest.skip("no sandbox here")
    monkeypatch.setattr("offleash.eval.verify.sandbox.workers.readable_paths", lambda: ["/usr/share"])
    with pytest.warns(RuntimeWarning, match="without a sandbox"), closing(WorkerPool(jobs)) as open_pool:
        assert open_pool.map([5])[0].value == 5


def test_workers_without_a_sandbox_say_so(jobs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confine, "unavailable", lambda: "namespaces are switched off")
    with pytest.warns(RuntimeWarning, match="without a sandbox.*switched off"), closing(WorkerPool(jobs)) as open_pool:
        assert open_pool.map([5])[0].value == 5


def test_a_job_too_long_for_a_message_is_an_error_of_its_own(jobs: str) -> None:
    with closing(WorkerPool(jobs)) as open_pool:
        first, second = open_pool.map(["x" * (65 << 20), 5])
    assert (first.status, "limit" in first.message) == ("error", True)
    assert second.value == 5


def test_a_target_that_cannot_be_imported_is_an_error_that_says_why(jobs: str) -> None:
    with pytest.raises(VerifyError, match="no_such_module"):
        WorkerPool("no_such_module:run").map([1])
    assert "no_such_module" not in sys.modules


def test_workers_do_not_run_the_callers_main_module(jobs: str, tmp_path: Path) -> None:
    script = tmp_path / "unguarded.py"
    script.write_text(
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); print('main runs')\n"
        "from offleash.eval.verify.sandbox.workers import WorkerPool\n"
        "pool = WorkerPool('pool_jobs:run'); print(pool.map([5])[0].value); pool.close()\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60)
    assert done.stdout == "main runs\n5\n", done.stderr


def test_workers_are_the_cores_of_this_machine_divided_among_the_processes_of_a_launcher(monkeypatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(12)), raising=False)
    for processes, workers in (("", 12), ("8", 1), ("5", 2), ("64", 1)):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", processes)
        assert WorkerPool("json:dumps").workers == own_cores() == workers
    assert WorkerPool("json:dumps", workers=3).workers == 3


def test_workers_that_nobody_set_are_the_cores_of_the_machine_that_a_pool_is_sent_to(monkeypatch) -> None:
    sent = [pickle.dumps(WorkerPool("json:dumps")), pickle.dumps(WorkerPool("json:dumps", workers=5))]
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(96)), raising=False)
    assert [pickle.loads(pool).workers for pool in sent] == [96, 5]
    for share, workers in (("12", 12), ("200", 96)):
        monkeypatch.setenv("OFFLEASH_CORES", share)
        assert [pickle.loads(pool).workers for pool in sent] == [workers, 5]
