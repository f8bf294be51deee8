"""Interpolated weights: the ends are the two models bit for bit, the middle is the mean; what does not fit is told."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from offleash.eval.errors import ConfigError
from offleash.eval.scoring.soup import chosen_names, exact_point, load_pair
from offleash.eval.stats.exact_support import EPSILONS
from offleash.train.cli import main


def weights(model: Any) -> dict[str, torch.Tensor]:
    return {name: values.detach() for name, values in model.named_parameters()}


def saved(folder: Path) -> dict[str, torch.Tensor]:
    return weights(AutoModelForCausalLM.from_pretrained(folder))


@pytest.fixture(scope="module")
def policy(lab_base, tmp_path_factory) -> Path:
    """The lab model with noise on every weight."""
    folder = tmp_path_factory.mktemp("soup") / "policy"
    model = AutoModelForCausalLM.from_pretrained(lab_base, dtype="float32")
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for values in model.parameters():
            values += 0.02 * torch.randn(values.shape, generator=generator)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(lab_base).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def soup(policy, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("out")
    task = ["--task", "countdown", "--task-args", '{"split": "probe", "n": 4, "strict": true}']
    assert main(["soup", "lab", str(policy), "--alpha", "0", "0.5", "1", "--out", str(out), *task]) == 0
    return out


def test_alpha_0_is_the_policy_1_the_base_and_a_half_the_mean(soup, policy, lab_base) -> None:
    base, own = saved(lab_base), saved(policy)
    for folder, expected in (("all-0", own), ("all-1", base)):
        found = saved(soup / folder)
        assert all(torch.equal(found[name], expected[name]) for name in own)
    found = saved(soup / "all-0.5")
    assert all(torch.allclose(found[name], (own[name] + base[name]) / 2, atol=1e-7) for name in own)
    assert not torch.equal(found["model.norm.weight"], own["model.norm.weight"])


def test_a_soup_has_the_tokenizer_and_is_a_model_like_any_other(soup, lab_base) -> None:
    ours, theirs = AutoTokenizer.from_pretrained(soup / "all-0.5"), AutoTokenizer.from_pretrained(lab_base)
    assert ours("3 7 25 = 96:")["input_ids"] == theirs("3 7 25 = 96:")["input_ids"]
    assert ours.eos_token == theirs.eos_token
    assert (soup / "all-0.5" / "generation_config.json").exists()


def test_the_curve_ends_at_the_base_itself_with_its_reweighting_beside_it(soup) -> None:
    record = json.loads((soup / "all.json").read_text())
    first, middle, last = record["points"]
    assert [point["alpha"] for point in record["points"]] == [0, 0.5, 1]
    assert len({point["pass_at_1"] for point in (first, middle, last)}) == 3
    assert last["nscr"] == last["leash_nscr"] == {f"{eps:g}": 0 for eps in EPSILONS}


def test_late_leaves_the_first_half_and_the_embeddings_to_the_policy(policy, lab_base, tmp_path) -> None:
    assert main(["soup", "lab", str(policy), "--alpha", "1", "--layers", "late", "--out", str(tmp_path)]) == 0
    found, base, own = saved(tmp_path / "late-1"), saved(lab_base), saved(policy)
    of_base = {name for name in own if torch.equal(found[name], base[name])}
    assert of_base == {
        name for name in own if ".layers.2." in name or ".layers.3." in name or name == "model.norm.weight"
    }
    assert all(torch.equal(found[name], own[name]) for name in own if name not in of_base)


def test_an_untied_head_is_late_and_two_stacks_are_refused() -> None:
    names = ["wte.weight", "h.0.a", "h.1.a", "h.2.a", "ln_f.weight", "lm_head.weight"]
    assert chosen_names(names, "late") == {"h.1.a", "h.2.a", "ln_f.weight", "lm_head.weight"}
    with pytest.raises(ConfigError, match="one stack of layers, got 2"):
        chosen_names(["visual.blocks.0.a", "model.layers.0.a"], "late")


def test_the_point_of_a_model_that_is_the_reweighting_has_its_nscr() -> None:
    """One problem: q w / (1 - P + w P) at w = 4."""
    base_u = np.array([0.3, 0.004, 0.0005])
    here_u = base_u * 4 / (1 - base_u.sum() + 4 * base_u.sum())
    point = exact_point(0.3, np.zeros(3, dtype=np.int64), base_u, here_u)
    assert point.pass_at_1 == pytest.approx(here_u.sum())
    assert point.nscr == pytest.approx(point.leash_nscr)
    assert point.nscr[0.01] == pytest.approx(0.5 if here_u[1] >= 0.01 else 0.0)


def test_another_tokenizer_and_another_shape_are_told_in_one_line(policy, lab_base, tmp_path, capsys) -> None:
    other = tmp_path / "other"
    shutil.copytree(policy, other)
    text = (other / "tokenizer.json").read_text()
    (other / "tokenizer.json").write_text(text.replace('"+"', '"@"'))
    assert main(["soup", "lab", str(other), "--alpha", "0.5", "--out", str(tmp_path / "out")]) == 2
    assert "different tokenizers" in capsys.readouterr().err
    small = AutoModelForCausalLM.from_pretrained(lab_base)
    small.config.num_hidden_layers = 3
    AutoModelForCausalLM.from_config(small.config).save_pretrained(tmp_path / "small")
    AutoTokenizer.from_pretrained(lab_base).save_pretrained(tmp_path / "small")
    with pytest.raises(ConfigError, match=r"different shapes \(model.layers.3.*missing"):
        load_pair("lab", str(tmp_path / "small"))


def test_what_cannot_be_done_is_told_in_one_line_before_anything_is_loaded(policy, tmp_path, capsys) -> None:
    (tmp_path / "rows.jsonl").write_text(json.dumps({"question": "What is 2 + 2?", "answer": "2 + 2 = 4 #### 4"}))
    unlisted = ["--task", "gsm8k", "--task-args", json.dumps({"path": str(tmp_path / "rows.jsonl")})]
    cases = (
        (["--alpha", "1.5"], "alpha must lie between 0 (the policy) and 1 (the base), got 1.5"),
        (["--alpha", "0.5", "--no-save"], "--no-save without --task"),
        (["--alpha", "0.5", *unlisted], "gsm8k does not"),
        (["--alpha", "0.5", "--task", "countdown"], "strict: true"),
    )
    for flags, error in cases:
        assert main(["soup", "lab", str(policy), "--out", str(tmp_path / "out"), *flags]) == 2
        told = capsys.readouterr().err
        assert told.count("\n") == 1
        assert error in told


def test_a_model_that_is_there_is_not_overwritten(soup, policy, capsys) -> None:
    assert main(["soup", "lab", str(policy), "--alpha", "0.5", "--out", str(soup)]) == 2
    assert "all-0.5 exists" in capsys.readouterr().err
