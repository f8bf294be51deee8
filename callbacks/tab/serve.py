"""TensorBoard on some runs, opened at the Support tab, each run under the name of its folder."""

import getpass
import socket
from collections.abc import Sequence
from pathlib import Path

from tensorboard import default, program

from offleash.callbacks.tab.folders import EVENTS
from offleash.eval.comparison.run import RECORD
from offleash.eval.errors import ConfigError

TAB = "offleash_support"


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
    spec = ",".join(f"{name}:{path / EVENTS if (path / EVENTS).is_dir() else path}" for name, path in runs.items())
    board = program.TensorBoard(default.get_plugins())
    board.configure((None, "--logdir_spec", spec, "--host", host, "--port", str(port), "--reload_interval", "10"))
    try:
        address = board.launch()
    except program.TensorBoardServerException as error:
        raise ConfigError(f"TensorBoard does not start: {error}. Choose another --port, or 0 for any") from error
    return f"{address}#{TAB}"


def tunnel(port: int) -> str:
    """The command that forwards the port, to be run on the computer with the browser."""
    return f"ssh -N -L {port}:localhost:{port} {getpass.getuser()}@{socket.gethostname()}"
