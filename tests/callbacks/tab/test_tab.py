"""The Support tab serves what a run's folder and its base pool hold, and nothing else."""

import base64
import gzip
import json
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.plugins.base_plugin import TBContext
from tensorboard.summary.writer.event_file_writer import EventFileWriter
from werkzeug.test import Client

from offleash.callbacks.summary import write_record
from offleash.callbacks.tab.export import write_html
from offleash.callbacks.tab.folders import RunFolders, log_roots
from offleash.callbacks.tab.loader import SupportTabLoader
from offleash.callbacks.tab.plugin import SupportTab
from offleash.eval.pool.testing import make_pool, make_problems
from offleash.eval.stats.bands import noise_bands

PROBLEMS = make_problems(3)


def make_run(folder, base_pool, steps=None, k=8):
    steps = {0: [3, 2, 0], 10: [8, 0, 1]} if steps is None else steps
    for step, hits in steps.items():
        make_pool(folder / "pools" / f"step-{step:06d}", hits=hits, k=k, problems=PROBLEMS)
    metrics = {"pass_at_k/1": 0.5, "support/unit/nscr": float("nan"), "monitor/seconds": 3.0}
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
    assert run["steps"]["10"] == {"pass_at_k/1": 0.5, "support/unit/nscr": None}  # not what the page does not show
    assert run["events"] == ["one/tensorboard", "one"]


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


def test_a_large_run_is_counted_little_by_little_the_last_step_first(logdir, monkeypatch):
    monkeypatch.setattr("offleash.callbacks.tab.runs.FIRST_SECONDS", 0.0)
    monkeypatch.setattr("offleash.callbacks.tab.runs.COUNT_SECONDS", 0.0)
    make_run(logdir / "many", "../../base-pools/sums", {step: [step % 8, 1, 0] for step in range(0, 50, 10)})
    plugin, asked = tab(logdir), []
    while not asked or asked[-1]["waiting"]:
        asked.append(ask(plugin, "/grid", run="many", level="problem")[1])
    assert [sorted(map(int, grid["steps"])) for grid in asked[:2]] == [[40], [0, 40]]
    assert len(asked) == 5
    assert {step: found["hits"][0] for step, found in asked[-1]["steps"].items()} == {
        "0": 0, "10": 2, "20": 4, "30": 6, "40": 0
    }  # fmt: skip
    assert ask(plugin, "/grid", run="many", level="answer")[1]["waiting"] == []  # counted at all levels at once


def test_a_step_that_cannot_be_read_is_named_and_the_others_are_shown(logdir):
    (part,) = (logdir / "one" / "pools" / "step-000000").glob("samples-*.parquet")
    part.write_bytes(b"PAR1 no more")
    status, grid = ask(tab(logdir), "/grid", run="one", level="problem")
    assert (status, list(grid["steps"]), list(grid["failed"])) == (200, ["10"], ["0"])
    assert "damaged" in grid["failed"]["0"]


def test_the_band_of_noise_is_that_of_the_base_s_own_problems(logdir):
    status, found = ask(tab(logdir), "/noise", run="one")
    bands = noise_bands([4, 2, 0], 8, 8)
    edges = {"lost": bands["shrunk"], "gained": bands["expanded"], "nscr": bands["nscr"]}
    assert (status, found) == (200, {name: [band.low, band.high] for name, band in edges.items()})


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
    assert list(RunFolders(log_roots(None, f"{logdir / 'one'},{logdir.parent / 'base-pools'}")).all()) == ["one"]
    assert RunFolders(log_roots(None, None)).all() == {}


def test_runs_of_one_name_in_two_places_are_both_there(logdir, tmp_path):
    make_run(tmp_path / "other" / "one", "../../base-pools/sums")
    found = RunFolders(log_roots(None, f"{logdir / 'one'},{tmp_path / 'other' / 'one'}")).all()
    assert set(found.values()) == {logdir / "one", tmp_path / "other" / "one"}


@pytest.mark.parametrize(
    ("flags", "names"),
    [
        (lambda runs: (str(runs), None), ["one/tensorboard", "one"]),
        (lambda runs: (str(runs / "one"), None), ["tensorboard", "."]),
        (lambda runs: (str(runs / "one" / "tensorboard"), None), ["."]),
        (lambda runs: (None, f"a:{runs / 'one'}"), ["a/tensorboard", "a/.", "a"]),
    ],
)
def test_a_run_is_found_in_tensorboard_s_own_list(logdir, flags, names):
    """Its colour there is that of its event files."""
    writer = EventFileWriter(str(logdir / "one" / "tensorboard"))
    writer.add_event(Event(wall_time=1.0, step=1))
    writer.close()
    folders = RunFolders(log_roots(*flags(logdir)))
    assert folders.event_runs(logdir / "one") == names
    listed = EventMultiplexer()
    for prefix, root in folders.roots:
        listed.AddRunsFromDirectory(str(root), prefix or None)
    assert names[0] in listed.Runs()


def test_a_run_without_samples_or_with_a_damaged_record_does_not_break_the_list(logdir):
    make_run(logdir / "two", None, {})
    (logdir / "three").mkdir()
    (logdir / "three" / "support.json").write_text("{")
    found = {run["name"]: run for run in ask(tab(logdir), "/runs")[1]}
    assert found["two"]["sampled"] == []
    assert "error" in found["three"]
    assert ask(tab(logdir), "/grid", run="two")[0] == 404


def test_without_pyarrow_a_route_says_so_in_a_line(logdir, monkeypatch):
    monkeypatch.delitem(sys.modules, "offleash.callbacks.tab.runs", raising=False)
    monkeypatch.setitem(sys.modules, "offleash.callbacks.tab.runs", None)
    status, found = ask(tab(logdir), "/runs")
    assert status == 500
    assert "offleash.callbacks.tab.runs" in found["error"]


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
    from offleash.callbacks.tab.runs import SHOWN, SHOWN_PREFIXES

    page = (STATIC / "index.js").read_text(encoding="utf-8")
    read = set(re.findall(r'"((?:support|entropy)/[a-z_/0-9]+)"', page))
    written = {metric.tag for metric in tags.METRICS}
    patterns = {tag.partition("{")[0] for tag in written if "{" in tag}
    assert read
    assert {tag for tag in read if tag not in written and tag not in patterns} == set()
    assert {tag for tag in read if tag not in SHOWN and tag not in SHOWN_PREFIXES} == set()


def test_an_export_holds_every_cell_and_no_text_of_a_model_outside_its_data(logdir, tmp_path):
    write_html({"one": logdir / "one"}, str(tmp_path / "tab.html"))
    page = (tmp_path / "tab.html").read_text(encoding="utf-8")
    (packed,) = re.findall(r'id="offleash-data">"([^"]+)"', page)
    held = json.loads(gzip.decompress(base64.b64decode(packed)))["data"]
    routes = [name.split("\n")[0] for name in held]
    assert {route: routes.count(route) for route in routes} == {"runs": 1, "noise": 1, "grid": 3, "cell": 6}
    one = held["cell\none\n\n10\np1"]
    assert one == ask(tab(logdir), "/cell", run="one", step="10", problem="p1")[1]
    assert "import " not in page.split('<script type="module">')[1].split("\n")[0]
