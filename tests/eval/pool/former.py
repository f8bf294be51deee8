"""Pools as earlier versions of Offleash left them on disk."""

import json
from pathlib import Path


def write_former(path: Path, version: int) -> None:
    """Give an empty pool the `pool.json` of format 1, 2 or 3: its fingerprint was over problems and k too."""
    from offleash.eval.pool.pool import Pool

    spec = Pool.open(path).spec
    content = {"format": version, "fingerprint": spec.former_fingerprint(), "spec": spec.to_json()}
    (path / "pool.json").write_text(json.dumps(content))
