"""`offleash where`, on files and on the embedded model."""

import json

import numpy as np
import pytest

from offleash.eval.commands.where import main
from offleash.eval.errors import ConfigError, PoolError
from offleash.eval.scoring.exact import ExactUnits


def units(first, second):
    """Two answers of one token and the end: the probability of each token, then .9 of ending."""
    logprob_i = np.log([first, 0.9, second, 0.9])
    logprob_t = logprob_i.reshape(2, 2).sum(axis=1)
    return ExactUnits(
        np.zeros(2, dtype=int), ("A", "B"), np.exp(logprob_t), np.arange(2), ("a", "b"), logprob_t, np.full(2, 2),
        np.array([5, 1, 6, 1]), logprob_i, ("p0",),
    )  # fmt: skip


def test_two_files_give_tables_numbers_and_a_figure(tmp_path, capsys):
    units(0.5, 0.4).save(tmp_path / "base.npz")
    units(0.9, 0.0001).save(tmp_path / "policy.npz")
    sides = [str(tmp_path / f"{name}.npz") for name in ("base", "policy")]
    out = {kind: tmp_path / f"where.{kind}" for kind in ("json", "md", "png")}
    flags = ["--json", str(out["json"]), "--markdown", str(out["md"]), "--figure", str(out["png"])]
    assert main([*sides, *flags]) == 0
    (first,) = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("first token")]
    assert first == ["first", "token", "-8.29", "1.000", "0.588"]
    found = json.loads(out["json"].read_text())
    assert found["lost"]["units"] == found["kept"]["units"] == 1
    assert found["lost"]["total"] == pytest.approx(np.log(0.0001 / 0.4))
    assert found["lost"]["after_first"] == pytest.approx([0.9, 0.9])
    assert "| first token | -8.29 | 1.000 | 0.588 |" in out["md"].read_text()
    assert out["png"].read_bytes()[:4] == b"\x89PNG"


def test_several_policies_are_pooled(tmp_path, capsys):
    probabilities = {"base": (0.5, 0.4), "one": (0.9, 0.0001), "two": (0.4, 0.2), "three": (0.0001, 0.0002)}
    for name, pair in probabilities.items():
        units(*pair).save(tmp_path / f"{name}.npz")
    sides = [str(tmp_path / f"{name}.npz") for name in probabilities]
    assert main([*sides, "--json", str(tmp_path / "where.json")]) == 0
    found = json.loads((tmp_path / "where.json").read_text())
    assert found["policies"] == sides[1:]
    assert (found["lost"]["units"], found["kept"]["units"]) == (3, 3)
    lost, kept = ([0.0001 / 0.4, 0.0001 / 0.5, 0.0002 / 0.4], [0.9 / 0.5, 0.4 / 0.5, 0.2 / 0.4])
    assert found["lost"]["total"] == pytest.approx(np.log(lost).mean())
    assert found["kept"]["depth_d"][0] == pytest.approx(np.log(kept).mean())
    assert found["kept"]["after_first"] == pytest.approx([0.9, 0.9])


def test_a_model_that_lost_nothing_has_dashes_not_zeros(tmp_path, capsys):
    task = ["--task", "countdown", "--task-args", '{"split": "probe", "n": 2, "strict": true}']
    assert main(["lab", "lab", *task, "--max-new-tokens", "20", "--figure", str(tmp_path / "where.svg")]) == 0
    lines = capsys.readouterr().out.splitlines()
    (first,) = [line.split() for line in lines if line.startswith("first token")]
    assert first == ["first", "token", "–", "–", "0"]
    assert (tmp_path / "where.svg").stat().st_size


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["lab", "lab"], "--task"),
        (["lab", "lab", "--task", "countdown"], "strict: true"),
        (["a.npz", "b.npz", "--figure", "where.pdf"], "png or .svg"),
        (["a.npz", "b.npz", "--json", "nowhere/where.json"], "nowhere"),
    ],
)
def test_what_cannot_be_done_is_one_line(argv, message):
    with pytest.raises(ConfigError, match=message):
        main(argv)


@pytest.mark.parametrize("size", [0, 100])
def test_a_damaged_file_is_one_line(tmp_path, size):
    file = tmp_path / "base.npz"
    units(0.5, 0.4).save(file)
    file.write_bytes(file.read_bytes()[:size])
    with pytest.raises(PoolError, match="cannot read exact probabilities"):
        main([str(file), str(file)])
