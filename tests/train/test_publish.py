"""The model card: TRL's, with the support table of support.json and a figure that is there."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from huggingface_hub import ModelCard
from PIL import Image

from offleash.eval.errors import OffleashError
from offleash.eval.report.numbers import number, p_words
from offleash.eval.report.sanitize import markdown_text
from offleash.train.grpo import train
from offleash.train.publish import base_name, push_final, support_section
from offleash.train.recipe.config import parse_recipe
from offleash.train.run_folder.folder import begin

pytestmark = pytest.mark.long

TINY = {
    "train_args": '{"split": "train", "n": 16}',
    "probe_args": '{"split": "probe", "n": 4}',
    "monitor_exact": "false",
    "per_device_train_batch_size": "8",
    "num_generations": "4",
    "max_steps": "1",
    "save_strategy": "no",
    "monitor_k": "4",
    "monitor_score_k": "4",
    "use_cpu": "true",
    "disable_tqdm": "true",
}
ROWS = {
    "pass@1": "pass_at_k/1",
    "pass@4": "pass_at_k/4",
    "SRR": "support/unit/srr",
    "NDR": "support/unit/ndr",
    "SDS": "support/unit/sds",
    "NSCR": "support/unit/nscr",
    "answer entropy": "entropy/answer",
    "token entropy": "entropy/token_T1",
}


def trained(folder: Path, **settings: Any) -> Any:
    flags = {**TINY, "output_dir": str(folder), **settings}
    return train(parse_recipe(["--config", "lab", *(w for k, v in flags.items() for w in (f"--{k}", str(v)))]))


NOISY = {"lost": "shrunk", "gained": "expanded"}


def table(card: str) -> dict[str, list[str]]:
    lines = [line[1:-2].split(" |") for line in card.splitlines() if line.startswith("| ")]
    return {title.strip(): [cell.strip() for cell in cells] for title, *cells in lines}


@pytest.fixture(autouse=True)
def restored(monkeypatch):
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", "")  # train() sets it


def test_the_card_beside_the_final_model_has_the_numbers_of_support_json_and_a_figure(tmp_path):
    trained(tmp_path / "run")
    final = tmp_path / "run" / "final"
    record = json.loads((tmp_path / "run" / "support.json").read_text())
    card = (final / "README.md").read_text()
    found = table(card)
    assert found.pop("") == ["base", "step 1"]
    for start, part in NOISY.items():
        (title,) = (title for title in found if title.startswith(start))
        names = (part, f"expected_{part}", f"p_{part}_strength", f"{part}_sure")
        count, expected, p, sure = (record["steps"]["1"][f"support/unit/{name}"] for name in names)
        words = f"{count:.0f} ({number(expected)}, {p_words(p)}); {sure:.0f} beyond chance"
        assert found.pop(title) == ["-", markdown_text(words)]
    assert "against its base lab:" in card
    assert "fine-tuned version of lab.\n" in card
    assert len(found) == len(ROWS)
    for (title, cells), (start, tag) in zip(found.items(), ROWS.items(), strict=True):
        assert title.startswith(start)
        values = record["base"].get(tag), record["steps"]["1"][tag]
        assert cells == ["-" if value is None else f"{value:.3f}" for value in values]
    assert "![pass@k of base and policy](pass_at_k.png)" in card
    with Image.open(final / "pass_at_k.png") as image:
        assert min(image.size) > 300
    assert card.index("## Quick start") < card.index("## Support") < card.index("## Training procedure")
    assert "grpo" in ModelCard.load(final / "README.md").data.tags
    assert str(tmp_path) not in card
    assert card == (tmp_path / "run" / "README.md").read_text()


def test_a_run_without_a_monitor_has_trls_own_card(tmp_path):
    trained(tmp_path / "run", monitor_every=0)
    card = (tmp_path / "run" / "final" / "README.md").read_text()
    assert "## Training procedure" in card
    assert "## Support" not in card
    assert not (tmp_path / "run" / "final" / "pass_at_k.png").exists()


class Hub:
    """In place of the hub's client: keeps what each upload held."""

    uploaded: list[set[str]]

    def __init__(self, token: str | None = None) -> None:
        pass

    def create_repo(self, name: str, **_: Any) -> Any:
        return SimpleNamespace(repo_id=name)

    def upload_folder(self, folder_path: str, **_: Any) -> Any:
        assert "## Support" in Path(folder_path, "README.md").read_text()
        self.uploaded.append({str(path.relative_to(folder_path)) for path in Path(folder_path).rglob("*")})
        return SimpleNamespace(is_done=lambda: True, result=lambda: None, done=lambda: True)


@pytest.fixture
def uploaded(monkeypatch):
    monkeypatch.setattr("transformers.trainer.hf_api", Hub)
    monkeypatch.setattr("offleash.train.publish.HfApi", Hub)
    Hub.uploaded = []
    return Hub.uploaded


def test_a_push_to_the_hub_uploads_the_model_and_its_card_and_no_sample(tmp_path, uploaded):
    settings = {"push_to_hub": "true", "hub_model_id": "me/mine", "save_strategy": "steps", "save_steps": 1}
    trained(tmp_path / "run", **settings)
    assert len(uploaded) == 2  # at the checkpoint, and at the end
    for files in uploaded:
        assert {"README.md", "pass_at_k.png", "model.safetensors", "tokenizer.json"} <= files
        assert not any("/" in name or name in ("pools", "final", "support.json", "hub") for name in files)
    final = tmp_path / "run" / "final"
    assert uploaded[-1] == {path.name for path in final.iterdir()}
    assert "# Model Card for mine" in (final / "README.md").read_text()
    assert not (tmp_path / "run" / "model.safetensors").exists()

    shutil.rmtree(final)  # killed at the very end
    assert trained(tmp_path / "run", **settings, resume="true") is None
    assert len(uploaded) == 3
    assert {"README.md", "pass_at_k.png", "model.safetensors"} <= uploaded[-1] == {p.name for p in final.iterdir()}


def test_a_push_that_fails_says_where_the_model_is(tmp_path, uploaded, monkeypatch):
    def offline(*_: Any, **__: Any) -> None:
        raise RuntimeError("no\nnetwork")

    monkeypatch.setattr(Hub, "upload_folder", offline)
    training = SimpleNamespace(
        hub_model_id=None, output_dir=tmp_path / "run", hub_token=None, hub_private_repo=None, hub_revision=None
    )
    with pytest.raises(OffleashError, match=rf"\(no network\).*`hf upload run {tmp_path}/final`"):
        push_final(training, tmp_path / "final")


def test_names_from_outside_are_text_in_the_card_and_nothing_more():
    metrics = {"pass_at_k/1": 0.5, "monitor/samples": 8.0, "support/detection_limit": 0.75}
    record = {"k": 1, "token_entropy": "entropy/token_T1", "base": metrics, "steps": {"2": metrics, "10": metrics}}
    section = support_section(record, "t\n\n# <script>alert(1)</script>", "[m](http://x)|`y`![i](z)")
    assert "<script>" not in section
    assert "[m](" not in section
    assert "![i](" not in section
    assert "\n# " not in section
    assert section.count("|---|---|---|") == 1
    assert "step 10" in section


def test_a_base_is_called_by_its_hub_id_or_its_folders_name(tmp_path):
    (tmp_path / "mine").mkdir()
    assert base_name("Qwen/Qwen2.5-7B") == "Qwen/Qwen2.5-7B"
    assert base_name(str(tmp_path / "mine")) == "mine"
    assert base_name("/anywhere/recipes/lab/base") == "lab"


def test_a_broken_record_costs_the_table_and_not_the_run(tmp_path, monkeypatch, capsys):
    def begin_and_break(recipe, folder, *rest):
        begin(recipe, folder, *rest)
        (folder / "support.json").write_text("{")

    monkeypatch.setattr("offleash.train.grpo.begin", begin_and_break)
    assert trained(tmp_path / "run", monitor_every=0) is not None
    assert "WARNING: the model card has no support table" in capsys.readouterr().out
    assert "## Training procedure" in (tmp_path / "run" / "final" / "README.md").read_text()
