"""The Support tab serves what a run's folder and its base pool hold, and nothing else."""

import json
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest
from tensorboard.plugins.base_plugin import TBContext
from werkzeug.test import Client

from offleash.callbacks.summary import write_record
from offleash.callbacks.tab.folders import RunFolders, log_roots
from offleash.callbacks.tab.loader import SupportTabLoader
from offleash.callbacks.tab.plugin import SupportTab
from offleash.eval.pool.testing import make_pool, make_problems

PROBLEMS = make_problems(3)


def make_run(folder, base_pool, steps=None, k=8):
    steps = {0: [3, 2, 0], 10: [8, 0, 1]} if steps is None else steps
    for step, hits in steps.items():
        make_pool(folder / "pools" / f"step-{step:06d}", hits=hits, k=k, problems=PROBLEMS)
    metrics = {"pass_at_k/1": 0.5, "support/unit/nscr": float("nan")}
    record = {"k": k, "token_entropy": "entropy/token_T1", "base_pool": base_pool, "base": metrics}
    folder.mkdir(parents=True, exist_ok=True)
    write_record(folder, {**record, "steps": dict.fromkeys(steps, metrics)})


@pytest.fixture
def logdir(tmp_path):
    make_pool(tmp_path / "base-pools" / "sums", hits=[4, 2, 0], k=8, problems=PROBLEMS)
    make_run(tmp_path / "runs" / "one", "../../base-pools/sums")
    return tmp_path / "runs"


def tab(logdir=None, spec=None):
    return SupportTab(TBContext(logdir=str(logdir or ""), flags=SimpleNamespace(logdir_spec=spec)))


def ask(plugin, route, **query):
    reply = Client(plugin.get_plugin_apps()[route]).get("/", query_string=query)
    return reply.status_code, json.loads(reply.get_data(as_text=True))


def test_it_lists_runs_with_their_steps_and_undefined_numbers_as_null(logdir):
    status, (run,) = ask(tab(logdir), "/runs")
    assert (status, run["name"], run["k"], run["sampled"]) == (200, "one", 8, [0, 10])
    assert run["steps"]["10"] == {"pass_at_k/1": 0.5, "support/unit/nscr": None}


def test_the_grid_and_a_cell_are_those_of_the_pools(logdir):
    status, grid = ask(tab(logdir), "/grid", run="one", level="problem")
    assert (status, grid["base"]["hits"], grid["steps"]["10"]["hits"]) == (200, [4, 2, 0], [8, 0, 1])
    status, cell = ask(tab(logdir), "/cell", run="one", step="10", problem="p1")
    assert (status, cell["base"]["correct"], cell["policy"]["correct"]) == (200, 2, 0)


def test_a_step_that_was_measured_again_is_counted_again(logdir):
    plugin = tab(logdir)
    assert ask(plugin, "/grid", run="one", level="problem")[1]["steps"]["10"]["hits"] == [8, 0, 1]
    folder = logdir / "one" / "pools" / "step-000010"
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()
    make_pool(folder, hits=[1, 1, 1], k=8, problems=PROBLEMS)
    assert ask(plugin, "/grid", run="one", level="problem")[1]["steps"]["10"]["hits"] == [1, 1, 1]


@pytest.mark.parametrize(
    ("route", "query"),
    [
        ("/grid", {"run": "../one"}),
        ("/grid", {"run": "one", "level": "../../etc"}),
        ("/cell", {"run": "one", "step": "../../x", "problem": "p0"}),
        ("/cell", {"run": "one", "step": "99", "problem": "p0"}),
        ("/cell", {"run": "one", "step": "10", "problem": "../../../etc/passwd"}),
        ("/cell", {}),
    ],
)
def test_what_is_not_there_is_one_line_and_404(logdir, route, query):
    status, found = ask(tab(logdir), route, **query)
    assert (status, list(found)) == (404, ["error"])


def test_links_that_lead_out_of_the_run_are_refused(logdir, tmp_path):
    secret = make_pool(tmp_path / "secret", hits=[8, 8, 8], k=8, problems=PROBLEMS)
    step = logdir / "one" / "pools" / "step-000020"
    step.symlink_to(secret.path)
    make_run(logdir / "one", "../../base-pools/sums", {})
    record = json.loads((logdir / "one" / "support.json").read_text())
    (logdir / "one" / "support.json").write_text(json.dumps({**record, "steps": {"20": {}}}))
    assert ask(tab(logdir), "/cell", run="one", step="20", problem="p0")[0] == 404
    assert ask(tab(logdir), "/grid", run="one", level="problem")[0] == 404


def test_only_get_is_answered(logdir):
    reply = Client(tab(logdir).get_plugin_apps()["/runs"]).post("/")
    assert reply.status_code == 405


def test_it_finds_a_run_by_its_folder_of_event_files_and_by_logdir_spec(logdir):
    (logdir / "one" / "tensorboard").mkdir()
    assert list(RunFolders(log_roots(str(logdir / "one" / "tensorboard"), None)).all()) == ["one"]
    assert list(RunFolders(log_roots(str(logdir / "one"), None)).all()) == ["one"]
    assert list(RunFolders(log_roots(None, f"a:{logdir / 'one'},{logdir}")).all()) == ["a", "one"]
    assert RunFolders(log_roots(None, None)).all() == {}


def test_a_run_without_samples_or_with_a_damaged_record_does_not_break_the_list(logdir):
    make_run(logdir / "two", None, {})
    (logdir / "three").mkdir()
    (logdir / "three" / "support.json").write_text("{")
    found = {run["name"]: run for run in ask(tab(logdir), "/runs")[1]}
    assert found["two"]["sampled"] == []
    assert "error" in found["three"]
    assert ask(tab(logdir), "/grid", run="two")[0] == 404


def test_the_loader_imports_nothing_heavy():
    """TensorBoard loads it unguarded: whatever is broken must not be imported with it."""
    heavy = ("pyarrow", "torch", "numpy", "transformers", "datasets")
    code = f"import sys, offleash.callbacks.tab.loader; print(*(n for n in {heavy} if n in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_a_broken_install_leaves_tensorboard_without_the_tab(monkeypatch):
    monkeypatch.setitem(sys.modules, "offleash.callbacks.tab.plugin", None)
    assert SupportTabLoader().load(TBContext(logdir="")) is None


def test_without_pyarrow_tensorboard_starts_and_finds_the_runs(logdir):
    code = (
        "import sys; sys.modules['pyarrow'] = None\n"
        "from tensorboard.plugins.base_plugin import TBContext\n"
        "from offleash.callbacks.tab.loader import SupportTabLoader\n"
        f"print(SupportTabLoader().load(TBContext(logdir={str(logdir)!r})).is_active())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True"]


def test_the_installed_entry_point_is_the_loader():
    from importlib.metadata import entry_points

    (point,) = [p for p in entry_points(group="tensorboard_plugins") if p.name == "offleash_support"]
    assert point.load() is SupportTabLoader


def test_every_tag_that_the_page_reads_is_one_that_the_monitor_writes():
    from offleash.callbacks import tags
    from offleash.callbacks.tab.plugin import STATIC

    page = (STATIC / "index.js").read_text(encoding="utf-8")
    read = set(re.findall(r'"((?:support|entropy)/[a-z_/0-9]+)"', page))
    written = {metric.tag for metric in tags.METRICS}
    patterns = {tag.partition("{")[0] for tag in written if "{" in tag}
    assert read
    assert {tag for tag in read if tag not in written and tag not in patterns} == set()
