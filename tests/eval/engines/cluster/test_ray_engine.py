"""On a Ray cluster whose workers die, and whose driver dies, a pool ends as it would on one machine."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from offleash.eval.engines.base import Request
from offleash.eval.engines.cluster.ray_engine import RayEngine
from offleash.eval.engines.cluster.worker import Model
from offleash.eval.engines.model import ModelSource, resolve_model
from offleash.eval.engines.prompts import prepare_prompts
from offleash.eval.errors import ConfigError, EngineError
from offleash.eval.pool.pool import Pool
from offleash.eval.sampling import Sampling
from offleash.eval.tasks import load_task
from offleash.train.cli import main

PLAIN = Sampling(max_new_tokens=20)
WORDS = ["--model", "lab", "--task", "countdown", "--task-args", '{"split": "probe", "n": 8}', "--max-new-tokens", "20"]
RAY = ["--ray", "--ray-workers", "2", "--save-every", "0.2"]
COLUMNS = ["problem_id", "index", "answer", "correct", "tokens", "completion"]


def sample(folder: Path, *words: str, code: str = "") -> "subprocess.Popen[str]":
    """The command in a process of its own; `code` is a module `mine` for it and its workers."""
    (folder.parent / "mine.py").write_text(code)
    env = {**os.environ, "PYTHONPATH": str(folder.parent), "OMP_NUM_THREADS": "1"}
    env.pop("RAY_ADDRESS", None)
    line = [sys.executable, "-m", "offleash.train.cli", "sample", *WORDS, "--pool", str(folder), *words]
    return subprocess.Popen(line, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ended(process: "subprocess.Popen[str]") -> tuple[int, str, str]:
    out, err = process.communicate(timeout=300)
    return process.returncode, out, err


def wait_for(what: Callable[[], Any], seconds: float = 120.0) -> Any:
    until = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < until, "it never came"
        time.sleep(0.05)
    return found


def parts(folder: Path, count: int) -> bool:
    return len(list(folder.glob("samples-*.parquet"))) >= count


def workers(driver: int) -> set[int]:
    import psutil

    below = {process.pid for process in psutil.Process(driver).children(recursive=True)}
    return {pid for pid, line in processes().items() if pid in below and "MapWorker" in line}


def rays() -> set[int]:
    return {pid for pid, line in processes().items() if "raylet" in line or "gcs_server" in line or "ray::" in line}


def processes() -> dict[int, str]:
    """Command lines; a process that is gone or a zombie has none."""
    import psutil

    return {process.pid: " ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])}


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


@pytest.mark.slow
def test_two_workers_one_of_them_killed_draw_the_very_pool_of_one_machine(tmp_path: Path, whole: Path) -> None:
    pytest.importorskip("ray")
    others = rays()
    process = sample(tmp_path / "pool", "--k", "512", *RAY)
    wait_for(lambda: parts(tmp_path / "pool", 2))
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
    pytest.importorskip("ray")
    others = rays()
    process = sample(tmp_path / "pool", "--k", "512", *RAY)
    wait_for(lambda: parts(tmp_path / "pool", 2))
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
def test_a_stopping_plan_draws_all_its_rounds_with_the_same_workers(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    words = ["--k", "256", "--plan", "until", "--successes", "3", "--engine", "mine:Counted"]
    code = (
        "import os, pathlib\n"
        "from offleash.eval.engines.transformers_engine import TransformersEngine\n"
        "class Counted(TransformersEngine):\n"
        "    def __init__(self, source, *, context):\n"
        "        super().__init__(source, context=context)\n"
        "        (pathlib.Path(__file__).parent / f'loaded-{os.getpid()}').touch()\n"
    )
    assert ended(sample(tmp_path / "here", *words, code=code))[0] == 0
    done, _, err = ended(sample(tmp_path / "ray", *words, *RAY, code=code))
    assert done == 0, err
    assert rows(tmp_path / "ray") == rows(tmp_path / "here")
    assert len(list(tmp_path.glob("loaded-*"))) == 3


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
    assert len(rows(tmp_path / "pool")) >= 64 * 6
    assert "Traceback" not in err


@pytest.mark.slow
def test_workers_that_only_die_end_the_run(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    words = ["--k", "64", "--engine", "mine:Dies", "--ray", "--ray-workers", "1"]
    code, _, err = ended(sample(tmp_path / "pool", *words, code=FAILING))
    assert code == 2
    assert "workers were started without a single answer" in err.splitlines()[-1]


@pytest.fixture(scope="module")
def source() -> ModelSource:
    return resolve_model("lab")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    ray = pytest.importorskip("ray")
    ray.init("local", num_cpus=2, log_to_driver=False, logging_level="ERROR")
    yield ray
    ray.shutdown()


@pytest.mark.slow
def test_answers_come_while_most_requests_are_not_even_asked_for(cluster: Any, source: ModelSource) -> None:
    (prompt,) = prepare_prompts(load_task("countdown", split="probe", n=1).problems, source.tokenizer).prompts
    asked = 0

    def requests() -> Iterator[Request]:
        nonlocal asked
        for asked in range(1, 41):
            yield Request(0, prompt, 4 * asked, 4, asked)

    engine = RayEngine("transformers", source, context=64, workers=2)
    stream = engine.generate(requests(), PLAIN)
    first = next(stream)
    assert asked <= 2 * 2 * engine.at_once < 40
    stream.close()
    again = list(engine.generate(requests(), PLAIN))
    engine.close()
    assert sorted(drawn.request.seed for drawn in again) == list(range(1, 41))
    # Log-probabilities may differ in the last digits: they depend on what else was in the batch.
    texts = {drawn.request.seed: [completion.text for completion in drawn.completions] for drawn in again}
    assert texts[first.request.seed] == [completion.text for completion in first.completions]
    assert cluster.is_initialized()


@pytest.mark.slow
def test_a_worker_with_other_weights_is_refused(cluster: Any, source: ModelSource) -> None:
    engine = RayEngine("transformers", replace(source, weights="0" * 64), context=64, workers=1)
    with pytest.raises(EngineError, match=r"'lab'.* weights "):
        next(engine.generate([Request(0, [5, 6], 0, 1, 1)], PLAIN))
    engine.close()


def test_a_worker_finds_the_drivers_model_wherever_the_driver_stood(
    tmp_path: Path, lab_base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "copy").symlink_to(lab_base)
    monkeypatch.chdir(tmp_path)
    source = resolve_model("copy")
    model = Model.of(source)
    monkeypatch.chdir("/")
    found = model.find()
    assert (found.weights, found.end_ids, found.dtype) == (source.weights, source.end_ids, source.dtype)
    with pytest.raises(ConfigError, match=" tokenizer "):
        model._replace(template="0" * 64).find()


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
