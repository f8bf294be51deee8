"""The floor plan: which room may import which. An arrow against it, or a cycle between rooms, fails here."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

LAYERS: tuple[tuple[str, ...], ...] = (
    ("train.commands",),
    ("train.variants.planned",),
    ("train.variants",),
    ("train",),
    ("train.run_folder",),
    ("train.preflight",),
    ("train.forecast",),
    ("train.recipe",),
    ("train.explorers.advantages", "train.explorers.loss", "train.explorers.samples"),
    ("train.explorers",),
    ("callbacks.watch",),
    ("callbacks.tab",),
    ("callbacks",),
    ("callbacks.policy",),
    ("eval.commands",),
    ("eval.report",),
    ("eval.browse",),
    ("eval.comparison",),
    ("eval.scoring",),
    ("eval.convert",),
    ("eval.convert.readers",),
    ("eval.pool",),
    ("eval.stats.leash",),
    ("eval.tasks.gym",),
    ("eval.engines.cluster", "eval.tasks", "eval.stats"),
    ("eval.engines", "eval.verify"),
    ("eval.verify.math_answers",),
    ("eval.verify.sandbox",),
    ("eval",),
    ("recipes",),
)
"""Top to bottom. A room imports from rooms below it, never from one above or beside it."""

DOORS = ("eval", "callbacks", "train")
"""Their `__init__.py` names what lies below, and imports it only when it is used."""

LARGEST_FOLDER = 20
ALLOWED_IN_STATS = {"numpy", "scipy"}


def rooms() -> list[str]:
    return sorted({path.parent.relative_to(ROOT).as_posix().replace("/", ".") for path in modules()})


def modules() -> list[Path]:
    found = [path for top in (*DOORS, "recipes") for path in sorted((ROOT / top).rglob("*.py"))]
    return [path for path in found if (path.parent / "__init__.py").exists()]


def imported(path: Path) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of everything that a file imports, at the top or inside a function."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def room_of(dotted: str) -> str:
    """The room that `offleash.a.b.name` is in: the longest folder that the name starts with."""
    parts = dotted.split(".")[1:]
    while not (ROOT.joinpath(*parts)).is_dir():
        parts.pop()
    return ".".join(parts)


def arrows() -> Iterator[tuple[str, str, str]]:
    """(room, room it imports from, where)."""
    for path in modules():
        here = path.parent.relative_to(ROOT).as_posix().replace("/", ".")
        if here in DOORS and path.name == "__init__.py":
            continue
        for line, name in imported(path):
            if name.startswith("offleash.") and (there := room_of(name)) != here:
                yield here, there, f"{path.relative_to(ROOT)}:{line} imports {name}"


def test_imports_are_absolute():
    """A relative one would escape the check of the arrows."""
    nodes = [(path, node) for path in modules() for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))]
    assert [str(path) for path, node in nodes if isinstance(node, ast.ImportFrom) and node.level] == []


def test_every_room_is_in_the_plan():
    assert set(rooms()) == {room for layer in LAYERS for room in layer}


def test_no_import_goes_up_or_sideways():
    height = {room: number for number, layer in enumerate(LAYERS) for room in layer}
    assert [where for here, there, where in arrows() if height[there] <= height[here]] == []


def test_the_check_sees_imports_inside_functions_and_a_planted_arrow(tmp_path):
    planted = tmp_path / "planted.py"
    planted.write_text("def f():\n    from offleash.train.grpo import train\n")
    assert list(imported(planted)) == [(2, "offleash.train.grpo.train")]
    assert room_of("offleash.train.grpo.train") == "train"
    assert room_of("offleash.eval.stats.support.dynamics") == "eval.stats"


def test_no_folder_is_too_large_to_be_read():
    sizes = {room: len(list(ROOT.joinpath(*room.split(".")).glob("*.py"))) for room in rooms()}
    assert {room: size for room, size in sizes.items() if size > LARGEST_FOLDER} == {}


def test_statistics_need_numpy_and_scipy_only():
    names = {name.split(".")[0] for path in (ROOT / "eval" / "stats").rglob("*.py") for _, name in imported(path)}
    assert names - set(sys.stdlib_module_names) - {"offleash"} <= ALLOWED_IN_STATS


def test_every_module_says_what_it_is_for():
    silent = [path for path in modules() if path.stat().st_size and not ast.get_docstring(ast.parse(path.read_text()))]
    assert [str(path.relative_to(ROOT)) for path in silent] == []


@pytest.mark.parametrize(
    "door", ["offleash", "offleash.eval", "offleash.callbacks", "offleash.train", "offleash.train.cli"]
)
def test_a_door_opens_without_heavy_imports(door):
    heavy = ("torch", "transformers", "trl", "scipy", "pyarrow", "pandas", "matplotlib", "numpy")
    code = f"import sys, {door}; print(*(name for name in {heavy} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
