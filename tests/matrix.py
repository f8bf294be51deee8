"""Run the tests of the TRL seam against several versions of TRL, each in its own environment under .venv-matrix/.

    python tests/matrix.py                  the oldest that pyproject.toml allows, the pinned one, the newest there is
    python tests/matrix.py 1.15.0 1.17.0    these

The range of TRL in pyproject.toml is what this shows to pass. Other packages have the versions of constraints.txt,
except where a version of TRL needs another.
"""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / ".venv-matrix"
TESTS = "tests/callbacks/policy"
FREE = ("trl", "transformers", "tokenizers", "huggingface_hub", "accelerate")
"""Packages that a version of TRL may need in other versions than constraints.txt has."""


def versions() -> list[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    oldest = next(m[1] for line in project["dependencies"] if (m := re.match(r"trl>=([\d.]+)", line)))
    pinned = next(m[1] for line in constraints() if (m := re.match(r"trl==([\d.]+)", line)))
    padded = f"{oldest}.0" if oldest.count(".") == 1 else oldest
    return list(dict.fromkeys([padded, pinned, newest()]))


def constraints() -> list[str]:
    return (ROOT / "constraints.txt").read_text().splitlines()


def newest() -> str:
    line = ["install", "--quiet", "--dry-run", "--ignore-installed", "--no-deps", "--report", "-", "trl"]
    report = subprocess.run([sys.executable, "-m", "pip", *line], capture_output=True, text=True, check=True).stdout
    return str(json.loads(report[report.index("{") :])["install"][0]["metadata"]["version"])


def prepare(version: str) -> Path:
    """An environment with this TRL; its Python."""
    folder = FOLDER / version
    python, ready = folder / "bin" / "python", folder / ".ready"
    if not ready.exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        kept = [line for line in constraints() if line.split("==")[0] not in FREE]
        (folder / "constraints.txt").write_text("\n".join(kept))
        install(python, ROOT / "constraints.txt", "--editable", str(ROOT), "pytest")
        install(python, folder / "constraints.txt", f"trl=={version}")
        ready.touch()
    return python


def install(python: Path, constraint: Path, *what: str) -> None:
    line = ["-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--constraint"]
    subprocess.run([python, *line, constraint, *what], check=True)


def main() -> int:
    failed = []
    for version in sys.argv[1:] or versions():
        print(f"trl {version}", flush=True)
        done = subprocess.run([prepare(version), "-m", "pytest", "--quiet", TESTS], cwd=ROOT)
        failed += [version] if done.returncode else []
    print(f"failed: {', '.join(failed)}" if failed else "all passed")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
