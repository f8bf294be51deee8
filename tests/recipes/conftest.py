"""The published configs of the models in the shipped recipes, so that they can be looked over without a hub."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig

from offleash import recipes

LAB = Path(recipes.__path__[0]) / "lab" / "base"


def _text(hidden: int, layers: int, heads: int, kv: int, inner: int, vocabulary: int, tied: bool, **more: Any) -> Any:
    return {
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "intermediate_size": inner,
        "vocab_size": vocabulary,
        "tie_word_embeddings": tied,
        "max_position_embeddings": 32768,
        **more,
    }


VISION = {"depth": 32, "hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16, "out_hidden_size": 2048}
MODELS: dict[str, tuple[str, dict[str, Any], int]] = {
    "Qwen/Qwen2.5-0.5B-Instruct": ("qwen2", _text(896, 24, 14, 2, 4864, 151936, True), 494_032_768),
    "Qwen/Qwen3-1.7B-Base": ("qwen3", _text(2048, 28, 16, 8, 6144, 151936, True, head_dim=128), 1_720_574_976),
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B": (
        "qwen2",
        _text(1536, 28, 12, 2, 8960, 151936, False, max_position_embeddings=131072),
        1_777_088_000,
    ),
    "Qwen/Qwen2.5-Math-7B": (
        "qwen2",
        _text(3584, 28, 28, 4, 18944, 152064, False, max_position_embeddings=4096),
        7_615_616_512,
    ),
    "Qwen/Qwen2.5-14B": ("qwen2", _text(5120, 48, 40, 8, 13824, 152064, False), 14_770_033_664),
    "Qwen/Qwen2.5-32B": (
        "qwen2",
        _text(5120, 64, 40, 8, 27648, 152064, False, max_position_embeddings=131072),
        32_763_876_352,
    ),
    "Qwen/Qwen2.5-VL-3B-Instruct": (
        "qwen2_5_vl",
        {"text_config": _text(2048, 36, 16, 2, 11008, 151936, True), "vision_config": VISION},
        3_754_622_976,
    ),
}
"""Hub id -> (model type, config, published number of parameters)."""


@pytest.fixture(scope="session")
def published() -> dict[str, tuple[Any, int]]:
    """Hub id -> (config, number of parameters)."""
    return {name: (AutoConfig.for_model(kind, **values), count) for name, (kind, values, count) in MODELS.items()}


@pytest.fixture
def model_folder(published: dict[str, tuple[Any, int]], tmp_path: Path) -> Callable[[str], Path]:
    """A folder with a model's config, and the lab's tokenizer with a chat template in place of its own."""

    def make(name: str) -> Path:
        folder = tmp_path / name.replace("/", "--")
        published[name][0].save_pretrained(folder)
        for file in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(LAB / file, folder / file)
        opened = "{% if add_generation_prompt %}<think>{% endif %}" if "R1-Distill" in name else ""
        template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
        (folder / "chat_template.jinja").write_text(template + opened)
        if "-VL-" in name:
            kinds = {"image_processor_type": "Qwen2VLImageProcessor", "processor_class": "Qwen2_5_VLProcessor"}
            (folder / "preprocessor_config.json").write_text(json.dumps(kinds))
        return folder

    return make
