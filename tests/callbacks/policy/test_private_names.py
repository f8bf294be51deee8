"""Private names of TRL, transformers, accelerate and vLLM are used in the two seams and nowhere else.

A leading underscore means private to its file. So in every file of the product a name with one must be defined in that
file; whatever is left belongs to somebody else.
"""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from offleash.callbacks.policy.trl_seam import VllmInternals

ROOT = Path(__file__).parents[3]
SEAMS = ("callbacks/policy/trl_", "eval/engines/vllm_seam.py")
"""How their paths begin."""
NAMED_TUPLE = {"_asdict", "_fields", "_make", "_replace"}

FOREIGN = {
    "_commit_hash": "PretrainedConfig has no public name for the commit that it came from",
    "_mpf_": "mpmath",
    "_exit": "os",
    "_actions": "argparse",
    "_AppendAction": "argparse, which has no public name for what action='append' makes",
    "_get_file_writer": "torch's SummaryWriter",
}
"""Private names of other libraries than those that the seams are for, each with its owner."""

LIBRARIES = ("trl", "transformers", "accelerate", "vllm")
PUBLIC_MODULES = {
    *("accelerate.utils", "transformers.hf_argparser", "transformers.integrations", "transformers.utils.logging"),
}
"""Documented as places to import from."""

LAUNCHER = {
    ("train/accelerate_launch.py", "accelerate.commands.launch"),
    ("train/preflight/installation.py", "accelerate.commands.config.config_args"),
    ("train/preflight/launch.py", "accelerate.commands.config.config_args"),
    ("train/preflight/launch.py", "accelerate.commands.launch"),
    ("train/preflight/launch.py", "accelerate.state"),
}
"""Checking how a run is launched needs what the launcher itself reads."""

UNDOCUMENTED = {"llm_engine", "vllm_client", "vllm_generation"}
"""Internals without an underscore."""


@cache
def product() -> dict[str, ast.AST]:
    """Every file but the seams, parsed."""
    paths = [path for top in ("callbacks", "train", "eval") for path in sorted((ROOT / top).rglob("*.py"))]
    files = {path.relative_to(ROOT).as_posix(): path for path in paths}
    return {
        name: ast.parse(path.read_text(encoding="utf-8")) for name, path in files.items() if not name.startswith(SEAMS)
    }


def is_private(name: object) -> bool:
    return isinstance(name, str) and name.startswith("_") and name.isidentifier() and not name.startswith("__")


def used(tree: ast.AST) -> Iterator[str]:
    """Private names read or set on an object, passed as a keyword, or given to getattr and the like as a string."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and (is_private(node.attr) or node.attr in UNDOCUMENTED):
            yield node.attr
        elif isinstance(node, ast.Call):
            yield from (word.arg for word in node.keywords if word.arg and is_private(word.arg))
            if ast.unparse(node.func) in ("getattr", "setattr", "hasattr"):
                yield from (a.value for a in node.args if isinstance(a, ast.Constant) and is_private(a.value))
        elif isinstance(node, ast.Subscript) and "__dict__" in ast.unparse(node.value):
            yield from (a.value for a in ast.walk(node.slice) if isinstance(a, ast.Constant) and is_private(a.value))


def of_a_trainer(tree: ast.AST) -> Iterator[str]:
    """Private names of what the file calls a trainer."""
    for node in ast.walk(tree):
        private = isinstance(node, ast.Attribute) and is_private(node.attr)
        if private and ast.unparse(node.value).split(".")[-1] == "trainer":
            yield node.attr


def defined(tree: ast.AST) -> set[str]:
    """Names that the file itself gives to functions, classes, variables and attributes of self."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self":
            names.add(node.attr)
    return names


def imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            yield node.module or ""
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def test_a_private_name_is_used_where_it_is_defined() -> None:
    known = {*NAMED_TUPLE, *FOREIGN}
    found = {(place, name) for place, tree in product().items() for name in {*used(tree)} - defined(tree) - known}
    assert found == set()


def test_nothing_private_is_read_from_a_trainer_whatever_the_file_defines() -> None:
    found = {(place, name) for place, tree in product().items() for name in of_a_trainer(tree)}
    assert found == set()
    assert set(of_a_trainer(ast.parse("self.trainer._metrics; trainer._x; self._metrics"))) == {"_metrics", "_x"}


def test_libraries_are_imported_by_their_public_modules() -> None:
    modules = {(place, module) for place, tree in product().items() for module in imported(tree)}
    deep = {(place, m) for place, m in modules if m.split(".")[0] in LIBRARIES and "." in m and m not in PUBLIC_MODULES}
    assert deep == LAUNCHER


def test_what_the_seam_relies_on_is_elsewhere_at_most_the_name_of_a_method(names_of: Any) -> None:
    internal = {name for name in names_of(VllmInternals) if is_private(name)} | UNDOCUMENTED
    for place, tree in product().items():
        methods = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        assert {*used(tree)} & internal <= methods, place


def test_the_check_sees_private_names() -> None:
    tree = ast.parse(
        "trainer._x; model(_y=1); getattr(a, '_z'); a.__dict__['_w'] = 1; self._v = trainer._v; b.llm_engine"
    )
    assert set(used(tree)) == {"_x", "_y", "_z", "_w", "_v", "llm_engine"}
    assert defined(tree) == {"_v"}
