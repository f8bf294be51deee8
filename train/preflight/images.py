"""Training on prompts with images: the model's processor instead of its tokenizer, and what does not support images."""

from collections.abc import Sequence

from transformers import AutoProcessor, AutoTokenizer, PreTrainedTokenizerBase, ProcessorMixin
from trl import GRPOConfig, ModelConfig

from offleash.callbacks.policy.trainer_protocol import PolicyTrainer
from offleash.callbacks.policy.trl_seam import COLOCATED_IMAGES, add_request_options
from offleash.eval.errors import ConfigError
from offleash.eval.images import has_images, with_pictures
from offleash.eval.problem import Task
from offleash.train.explorers.base import Explorer

MODEL_INPUTS = (
    *("pixel_values", "image_grid_thw", "num_images", "pixel_attention_mask", "spatial_shapes", "num_tiles"),
    *("image_sizes", "token_type_ids", "mm_token_type_ids", "image_position_ids"),
)
"""The image inputs in TRL's batches, which its scoring takes (trl 1.16)."""


def all_have_images(*tasks: Task) -> bool:
    """Whether the prompts contain images.

    Raises ConfigError if only some of them do, which processors do not support, or if an image cannot be read.
    """
    held = [has_images(problem) for task in tasks for problem in task.problems]
    if any(held) and not all(held):
        raise ConfigError(
            f"{sum(held)} of {len(held)} training and probe prompts contain images: use only problems with images, or "
            "only problems without"
        )
    for task in tasks:
        for problem in task.problems if any(held) else ():
            try:
                with_pictures(problem.prompt)
            except ConfigError as error:
                raise ConfigError(f"problem {problem.id!r} of task {task.name!r}: {error}") from error
    return any(held)


def load_processor(model: ModelConfig, with_images: bool) -> PreTrainedTokenizerBase | ProcessorMixin:
    """The model's tokenizer, or its processor if prompts contain images; it pads and truncates on the left."""
    name, where = model.model_name_or_path, {"revision": model.model_revision}
    kind = AutoProcessor if with_images else AutoTokenizer
    try:
        found = kind.from_pretrained(name, padding_side="left", truncation_side="left", **where)
    except (OSError, ValueError, ImportError) as error:
        reason = next((line for line in str(error).splitlines() if line.strip()), "").strip()
        raise ConfigError(f"cannot load the model {name!r}: {reason}") from error
    if with_images and not isinstance(found, ProcessorMixin):
        raise ConfigError(f"the prompts contain images, which {name!r} does not support: use a vision-language model")
    tokenizer = found.tokenizer if with_images else found
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return found


def check_takes_images(explorers: Sequence[Explorer], training: GRPOConfig) -> None:
    if training.use_vllm and training.vllm_mode == "colocate":
        raise ConfigError(f"the prompts contain images, and {COLOCATED_IMAGES}: set use_vllm: false")
    for explorer in explorers:
        if explorer.text_only:
            raise ConfigError(
                f"explorer {type(explorer).__name__} supports text prompts only, and these contain images: remove it"
            )


def hide_image_token(trainer: PolicyTrainer) -> None:
    """Keep vLLM from sampling the image token, which would have no image. Without vLLM TRL prevents it itself."""
    if trainer.use_vllm:
        add_request_options(trainer, logit_bias={trainer.model.config.image_token_id: -100.0})
