"""The wheel holds what the tree holds, and works away from it."""

import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[1]
MAPPED = ("train", "eval", "callbacks", "recipes")


def test_pyproject_lists_every_package_of_the_tree():
    listed = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"])
    found = {"offleash"} | {
        f"offleash.{path.parent.relative_to(ROOT).as_posix().replace('/', '.')}"
        for folder in MAPPED
        for path in (ROOT / folder).rglob("__init__.py")
    }
    assert listed == found


def test_every_folder_with_modules_is_a_package():
    for folder in ("train", "eval", "callbacks"):
        for path in (ROOT / folder).rglob("*.py"):
            assert (path.parent / "__init__.py").exists(), path


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    out = tmp_path_factory.mktemp("wheel")
    # From a copy: a build leaves files behind, and would pack what an earlier one left.
    source = out / "source"
    shutil.copytree(ROOT, source, ignore=shutil.ignore_patterns(".*", "build", "dist", "runs", "*.egg-info", "tests"))
    line = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(source)]
    subprocess.run(line, check=True, capture_output=True)
    (path,) = out.glob("*.whl")
    return path


def test_the_wheel_imports_and_finds_its_lab_from_a_clean_place(wheel, tmp_path):
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    code = (
        "import offleash.eval.stats.support, offleash.train.recipe.config as config, offleash.callbacks, pathlib\n"
        "assert 'site' in offleash.eval.stats.support.__file__, offleash.eval.stats.support.__file__\n"
        "recipe = config.parse_recipe(['--config', 'lab', '--use_cpu', 'true'])\n"
        "base = pathlib.Path(recipe.model.model_name_or_path)\n"
        "assert (base / 'model.safetensors').is_file() and 'site' in str(base), base\n"
        "import transformers\n"
        "print(transformers.AutoModelForCausalLM.from_pretrained(base).num_parameters())\n"
    )
    # -S keeps the editable install's path hooks away; the dependencies come from this environment's folder.
    dependencies = next(path for path in sys.path if path.endswith("site-packages"))
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path / "site"), dependencies])}
    done = subprocess.run([sys.executable, "-S", "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[-1]) > 400_000


def test_the_wheel_carries_no_tests_and_no_benchmarks(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert all(name.startswith(("offleash/", "offleash-")) for name in names)
    assert not any("test" in name.split("/")[1] or "bench" in name.split("/")[1] for name in names)


def test_the_wheel_carries_the_templates_of_the_reports(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if name.endswith(".html")}
    compare, variants = "offleash/eval/report/templates/", "offleash/train/variants/templates/"
    assert {f"{compare}{name}.html" for name in ("page", "parts", "compare")} | {f"{variants}variants.html"} <= names
