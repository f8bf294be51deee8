"""Training on prompts with images: the model's processor in place of its tokenizer, and what does not go with it."""

from typing import Any

from transformers import AutoProcessor, AutoTokenizer, PreTrainedTokenizerBase, ProcessorMixin
from trl import ModelConfig

from offleash.eval.errors import ConfigError
from offleash.eval.tasks import Task
from offleash.eval.tasks.images import has_images

__all__ = ["MODEL_INPUTS", "are_pictured", "load_processor", "refuse_pictures"]

MODEL_INPUTS = (
    *("pixel_values", "image_grid_thw", "num_images", "pixel_attention_mask", "spatial_shapes", "num_tiles"),
    *("image_sizes", "token_type_ids", "mm_token_type_ids", "image_position_ids"),
)
"""What TRL's batches hold of images, and its scoring takes (trl 1.16)."""


def are_pictured(*tasks: Task) -> bool:
    """Whether the prompts hold images; ConfigError if only some of them do, which processors do not take together."""
    held = [has_images(problem) for task in tasks for problem in task.problems]
    if any(held) and not all(held):
        raise ConfigError(
            f"{sum(held)} of {len(held)} training and probe prompts hold images: train on problems that all do, or on "
            "problems of text"
        )
    return any(held)


def load_processor(model: ModelConfig, pictured: bool) -> PreTrainedTokenizerBase | ProcessorMixin:
    """The model's tokenizer, or its processor where prompts hold images; it pads and cuts on the left."""
    name, where = model.model_name_or_path, {"revision": model.model_revision}
    kind = AutoProcessor if pictured else AutoTokenizer
    try:
        found = kind.from_pretrained(name, padding_side="left", truncation_side="left", **where)
    except (OSError, ValueError, ImportError) as error:
        reason = next((line for line in str(error).splitlines() if line.strip()), "").strip()
        raise ConfigError(f"cannot load the model {name!r}: {reason}") from error
    if pictured and not isinstance(found, ProcessorMixin):
        raise ConfigError(f"the prompts hold images, and {name!r} takes none: choose a vision-language model")
    tokenizer = found.tokenizer if pictured else found
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return found


def refuse_pictures(trainer: Any, explorer: str) -> None:
    """For explorers that put batches together themselves."""
    if are_pictured(trainer.verifier.task):
        raise ConfigError(f"explorer {explorer} works on prompts of text, and these hold images: leave it out")
