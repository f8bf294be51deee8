"""README and docs: links lead somewhere, and every command and example is run, on a smaller budget, or needs a GPU."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from offleash.train.commands.metrics import all_metrics, as_markdown
from tests.browser.looking import fill, hits_at, measure

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"(?P<gpu><!-- needs-gpu -->\n)?^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.M | re.S)
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")

SMALL_RUN = shlex.split(
    "--max_steps 1 --per_device_train_batch_size 16 --monitor_every 1 --monitor_k 4 --monitor_score_k 4 --save_steps 1 "
    """--train_args '{"split": "train", "n": 16}' --probe_args '{"split": "probe", "n": 4, "strict": true}' """
    "--use_cpu true"
)
SMALLER = {
    "8192": "32",
    '"n": 200': '"n": 4',
    '"n": 64': '"n": 4',
    "--seeds 5": "--seeds 1",
    "low_lr placebo focal": "focal",
}
"""The same commands on a budget that a test can pay."""


class Block(NamedTuple):
    language: str
    text: str
    needs_gpu: bool


def blocks(page: Path) -> Iterator[Block]:
    for match in BLOCK.finditer(page.read_text(encoding="utf-8")):
        yield Block(match["language"], match["text"], match["gpu"] is not None)


def commands(block: Block) -> list[str]:
    lines = block.text.replace("\\\n", " ").splitlines()
    return [line.split("  #")[0].strip() for line in lines if line.strip() and not line.startswith("#")]


def name(page: Path) -> str:
    return page.stem


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_to_files(page):
    for target in LINK.findall(page.read_text(encoding="utf-8")):
        if not target.startswith(("http://", "https://", "#")):
            assert (page.parent / target.split("#")[0]).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_block_has_a_language(page):
    assert {block.language for block in blocks(page)} <= {"bash", "python", "text"}


@pytest.mark.long
def test_the_site_builds(tmp_path):
    line = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "site" / "tutorial" / "index.html").exists()


def test_the_page_of_metrics_has_the_table_of_the_code():
    assert as_markdown(all_metrics()) in (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")


VARIABLE = re.compile(r"""environ(?:\.\w+\(|\[|, )\s*"([A-Z][A-Z0-9_]+)"|^[A-Z_]+ = "(OFFLEASH_[A-Z_]+)"$""", re.M)


def test_every_environment_variable_of_the_code_is_in_the_page_of_commands():
    files = [path for top in ("train", "callbacks", "eval", "recipes") for path in (ROOT / top).rglob("*.py")]
    found = {name for path in files for match in VARIABLE.findall(path.read_text()) for name in match if name}
    assert {"OPENAI_API_KEY", "OFFLEASH_SAID", "ACCELERATE_USE_FSDP", "VLLM_LOGGING_LEVEL"} <= found
    page = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    assert sorted(name for name in found if f"`{name}`" not in page) == []


@pytest.fixture
def workplace(tmp_path):
    """A folder as a user has it: the recipes beside one's own files, a benchmark, and a finished run of the lab."""
    (tmp_path / "recipes").symlink_to(ROOT / "recipes")
    (tmp_path / "runs" / "lab").mkdir(parents=True)
    (tmp_path / "runs" / "lab" / "final").symlink_to(ROOT / "recipes" / "lab" / "base")
    (tmp_path / "bench.jsonl").write_text('{"problem": "1 + 1?", "answer": "2"}\n')
    shutil.copytree(ROOT / "recipes" / "lab" / "base", tmp_path / "runs" / "lab" / "checkpoint-200")
    (tmp_path / "runs" / "lab" / "checkpoint-200" / "trainer_state.json").write_text('{"global_step": 200}')
    return tmp_path


def shell(line: str, folder: Path) -> None:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    env = {**os.environ, "PATH": path}
    done = subprocess.run(["bash", "-c", line], cwd=folder, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{line}\n{done.stdout[-1000:]}\n{done.stderr[-2000:]}"


def smaller_plan(folder: Path, name: str) -> str:
    """One seed of plain and of the first variant, as short as `SMALL_RUN`."""
    plan = yaml.safe_load((folder / name).read_text())
    words = [word.removeprefix("--") for word in SMALL_RUN]
    settings = {key: yaml.safe_load(value) for key, value in zip(words[::2], words[1::2], strict=True)}
    settings.pop("probe_args")
    plan["settings"] |= settings
    plan["problems"]["n"] = 4
    plan["seeds"] = plan["seeds"][:1]
    plan.pop("equal_samples", None)
    first = next(iter(plan["variants"]))
    plan["controls"] = {"plain": plan["controls"]["plain"][:1]}
    plan["variants"] = {first: plan["variants"][first][:1]}
    (folder / "small_plan.yaml").write_text(yaml.safe_dump(plan))
    return "small_plan.yaml"


def run_command(line: str, folder: Path) -> None:
    program, *rest = line.split()
    if program == "make":
        subprocess.run(["make", "--dry-run", *rest], cwd=ROOT, check=True, capture_output=True)
    elif program == "pip":
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        assert set(re.findall(r"\[([\w,]+)\]", line)[0].split(",") if "[" in line else []) <= set(extras)
    elif program == ".":
        assert rest == [".venv/bin/activate"]
    elif program == "tensorboard":  # it would serve until it is ended, and so would `offleash view`
        assert (folder / rest[rest.index("--logdir") + 1]).is_dir()
    elif rest[:1] == ["view"]:
        shell(line if "--html" in rest else f"{line} --html view.html", folder)
    else:
        assert program in ("offleash", "accelerate", "python"), f"nobody runs {line!r}"
        for large, small in SMALLER.items():
            line = line.replace(large, small)
        if line.startswith(("offleash train", "accelerate launch")):
            line += " " + shlex.join(SMALL_RUN)
        if "--plan" in line:
            line = line.replace(planned := rest[rest.index("--plan") + 1], smaller_plan(folder, planned))
        elif line.startswith("offleash variants"):
            line += " -- " + shlex.join(SMALL_RUN)
        shell(line, folder)


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES[1:], ids=name)
def test_every_command_and_example_of_a_page_runs(page, workplace):
    if page.stem == "tab":  # it shows a run that another page makes
        measure(workplace / "runs" / "lab", [0, 10], fill(workplace / "base-pools" / "base", hits_at(0)))
    for block in blocks(page):
        if block.needs_gpu:
            continue
        if block.language == "python":
            python = shlex.join([sys.executable, "-c", block.text])
            shell(python, workplace)
        elif block.language == "bash":
            for line in commands(block):
                run_command(line, workplace)


@pytest.mark.long
def test_the_commands_of_the_readme_run(workplace):
    for block in blocks(ROOT / "README.md"):
        for line in commands(block) if block.language == "bash" else ():
            run_command(line, workplace)


@pytest.mark.long
def test_the_example_of_the_readme_runs_on_a_trainer(make_trainer):
    (example,) = [block.text for block in blocks(ROOT / "README.md") if block.language == "python"]
    trainer = make_trainer()
    trainer.reward_funcs = [lambda completions, **columns: [float("+" in text) for text in completions]]
    before = len(trainer.callback_handler.callbacks)
    exec(example, {"trainer": trainer, "held_out": [{"prompt": "1,2,3,4=10:"}]})
    assert len(trainer.callback_handler.callbacks) == before + 1
