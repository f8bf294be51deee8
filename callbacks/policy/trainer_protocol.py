"""What Offleash asks of a trainer by public names: `trl.GRPOTrainer` and its subclasses have all of it.

Private names are used through `trl_seam.py` only. A test compares this list with a real trainer.
"""

from typing import Any, Protocol

from accelerate import Accelerator
from datasets import Dataset
from transformers import TrainerCallback, TrainerControl, TrainerState
from trl import GRPOConfig


class PolicyTrainer(Protocol):
    """The trainer of a policy: the model, its settings, and the state of the run."""

    model: Any
    model_wrapped: Any
    ref_model: Any
    """The KL reference; None with `beta = 0` and with PEFT."""
    optimizer: Any
    processing_class: Any
    """A tokenizer, or a processor for prompts with images."""
    eos_token_ids: list[int]
    train_dataset: Dataset
    eval_dataset: Any
    """A dataset, several by name, or None."""
    reward_funcs: list[Any]
    """Functions, and models for reward models."""

    args: GRPOConfig
    accelerator: Accelerator
    is_deepspeed_enabled: bool
    is_fsdp_enabled: bool

    state: TrainerState
    control: TrainerControl
    callback_handler: Any
    current_gradient_accumulation_steps: int

    use_vllm: bool
    num_generations: int
    max_completion_length: int
    temperature: float
    top_p: float
    top_k: int | None
    min_p: float | None
    repetition_penalty: float
    epsilon_low: float
    epsilon_high: float

    def add_callback(self, callback: TrainerCallback | type[TrainerCallback]) -> None: ...
