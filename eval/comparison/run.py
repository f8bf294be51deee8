"""A monitored training run's folder: where its steps' pools are, and the base's pool that they were compared with."""

import json
from pathlib import Path

from offleash.eval.errors import PoolError

RECORD = "support.json"
"""What the monitor writes into the run's folder: the numbers of every step, and the path of the base's pool."""


def is_run(folder: Path) -> bool:
    return (folder / RECORD).is_file()


def run_pools(folder: Path) -> tuple[Path, Path]:
    """The base's pool of a run, and the folder with the pools of its steps.

    The record has the base's pool relative to the run's folder; older ones have it relative to the folder in which
    training was started: it is looked for in the working directory, and among the base pools beside the run.
    """
    path = folder / RECORD
    try:
        recorded = json.loads(path.read_text(encoding="utf-8"))["base_pool"]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise PoolError(f"{path} does not say which base pool the run was compared with ({error})") from error
    if not isinstance(recorded, str):
        raise PoolError(f"{path} names no base pool: name it, offleash compare BASE {folder}/pools")
    places = [folder.resolve() / recorded, Path(recorded), folder.resolve().parent / "base-pools" / Path(recorded).name]
    base = next((place for place in places if (place / "pool.json").is_file()), None)
    if base is None:
        raise PoolError(
            f"the base pool {recorded} of {path} is neither there, nor in the working directory, nor beside the run: "
            f"name it, offleash compare BASE {folder}/pools"
        )
    return base, folder / "pools"
