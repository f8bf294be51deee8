"""TensorBoard on some runs, opened at the Support tab, each run under the name of its folder.

The address also says how the other tabs open: without smoothing, and with cards pinned that show a run as it is. The
scalars of measured steps are not among them: the tab "Time Series" hides the first and the last of up to 20 points as
outliers, which no address can change. "Custom Scalars" has them (`callbacks.charts`).
"""

import getpass
import json
import socket
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from tensorboard import default, program
from tensorboard.backend.event_processing import plugin_event_multiplexer

from offleash.callbacks import tags
from offleash.callbacks.event_files import EVENT_FILES
from offleash.callbacks.tab.folders import EVENTS
from offleash.eval.comparison.run import RECORD
from offleash.eval.errors import ConfigError

TAB = "offleash_support"
REWARD = "train/reward"
"""TRL's tag; it has a point for every logged step."""
PINNED_RUNS = 3
_EXPERIMENT = "defaultExperimentId"  # what TensorBoard calls all that it was started on


def check_runs(folders: Sequence[Path]) -> dict[str, Path]:
    """Runs by name: that of the folder, with as many of its parents as tell equal names apart.

    Raises ConfigError for what is not a run's folder.
    """
    if strange := [folder for folder in folders if not (folder / RECORD).is_file()]:
        raise ConfigError(f"{strange[0]} is not the folder of a monitored run: it has no {RECORD}")
    paths = list(dict.fromkeys(folder.resolve() for folder in folders))
    if bad := [path for path in paths if set(",:") & set(str(path))]:
        raise ConfigError(f"TensorBoard cannot open {bad[0]}: its path has a comma or a colon. Give the folder a link")
    depth = next(n for n in range(1, 100) if len({path.parts[-n:] for path in paths}) == len(paths))
    return {"/".join(path.parts[-depth:]).strip("/"): path for path in paths}


def start(runs: dict[str, Path], host: str, port: int) -> str:
    """Start TensorBoard in threads of this process and return the address of the tab.

    Raises ConfigError if the port is taken.
    """
    spec = ",".join(f"{name}:{_events(path)}" for name, path in runs.items())
    plugin_event_multiplexer.EventMultiplexer = _NamedRuns  # LocalDataIngester makes one
    board = program.TensorBoard(default.get_plugins())
    board.configure((None, "--logdir_spec", spec, "--host", host, "--port", str(port), "--reload_interval", "10"))
    try:
        address = board.launch()
    except program.TensorBoardServerException as error:
        raise ConfigError(f"TensorBoard does not start: {error}. Choose another --port, or 0 for any") from error
    return f"{address}?{page_settings(runs)}#{TAB}"


class _NamedRuns(plugin_event_multiplexer.EventMultiplexer):
    """TensorBoard 2.21 calls a folder's own events `NAME/.` where it was given a name for the folder."""

    def AddRun(self, path: str, name: str | None = None) -> Any:
        return super().AddRun(path, name.removesuffix("/.") if name else name)


def page_settings(runs: Iterable[str]) -> str:
    """The query of TensorBoard's address: smoothing, and the pinned cards, those of `PINNED_RUNS` runs at most."""
    pins: list[dict[str, str | int]] = [
        {"plugin": "images", "tag": figure.tag, "runId": f"{_EXPERIMENT}/{run}", "sample": 0}
        for run in list(runs)[:PINNED_RUNS]
        for figure in (tags.MOVES_FIGURE, tags.PASS_AT_K_FIGURE)
    ]
    pins.append({"plugin": "scalars", "tag": REWARD})
    return urlencode({"smoothing": 0, "pinnedCards": json.dumps(pins, separators=(",", ":"))})


def _events(folder: Path) -> Path:
    """Where a run has its event files; earlier versions, and watchers, have a folder of their own for them."""
    own = folder / EVENTS
    return own if own.is_dir() and not any(folder.glob(EVENT_FILES)) else folder


def tunnel(port: int) -> str:
    """The command that forwards the port, to be run on the computer with the browser."""
    return f"ssh -N -L {port}:localhost:{port} {getpass.getuser()}@{socket.gethostname()}"
