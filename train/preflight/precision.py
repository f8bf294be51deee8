"""The precision of a run: it must be what the recipe says, and small updates must not be lost to rounding.

Read against transformers 5.17 and Accelerate 1.15: a launcher's `mixed_precision` applies if the recipe sets neither
bf16 nor fp16. Weights that are loaded in half precision are trained in it, unless DeepSpeed keeps a float32 copy or
FSDP with mixed precision casts them to float32: updates of 1e-6 would be lost.
"""

from transformers import TrainingArguments
from trl import ModelConfig

from offleash.eval.errors import ConfigError
from offleash.train.preflight.launch import sharding
from offleash.train.preflight.vllm_cpu import engine_dtype

HALF = ("bf16", "fp16")


def precision(training: TrainingArguments) -> str:
    """The mixed precision of a run: no, bf16, fp16 or fp8. A DeepSpeed config takes precedence."""
    if training.deepspeed_plugin is None:
        return str(training.mixed_precision)
    config = training.deepspeed_plugin.hf_ds_config
    return next((name for name in HALF if str(config.get_value(f"{name}.enabled")).lower() == "true"), "no")


def check_precision(training: TrainingArguments) -> None:
    """Raise ConfigError if the launcher would train in half precision and the recipe sets neither bf16 nor fp16."""
    runs = precision(training)
    if runs in HALF and not (training.bf16 or training.fp16):
        raise ConfigError(
            f"the recipe says bf16: false, but the launcher's mixed precision is {runs} and takes precedence: add "
            f"--{runs} true to the training flags, or launch with mixed_precision: no (--mixed_precision no)"
        )


def accumulate_in_float32(training: TrainingArguments) -> None:
    """Let ZeRO-2 and ZeRO-3 add up the gradients of micro-batches in float32, unless their config says otherwise.

    DeepSpeed (0.19) adds them up in the weights' dtype: in bfloat16, with its 8 bits, the 64th micro-batch of a step is
    added with an error of up to a quarter of its size. Accelerate's config has no key for it. Call it before the
    trainer is built.
    """
    if training.deepspeed_plugin is None or precision(training) != "bf16":
        return
    config = training.deepspeed_plugin.hf_ds_config
    if config.get_value("zero_optimization.stage", 0) in (2, 3):
        config.config.setdefault("data_types", {}).setdefault("grad_accum_dtype", "fp32")


def check_weight_dtype(training: TrainingArguments, model: ModelConfig) -> None:
    """Raise ConfigError if all weights would be trained in half precision. Call it once model_init_kwargs are set."""
    dtype = engine_dtype(training, str(model.model_name_or_path))
    check_rounding(dtype, sharding(training), precision(training), model.use_peft)


def check_rounding(dtype: str, sharding: str, precision: str, peft: bool) -> None:
    """Raise ConfigError if a run with weights of this dtype would barely train. `sharding` as in launch.sharding."""
    sheltered = sharding.startswith("zero") or (sharding.startswith("fsdp") and precision != "no")
    if dtype in ("bfloat16", "float16") and not (peft or sheltered):
        raise ConfigError(
            f"dtype: {dtype} without a float32 copy of the weights barely trains, because small updates are rounded to "
            "0: set dtype: float32 (bf16: true still computes in bf16), or launch with ZeRO, or with FSDP and mixed "
            "precision"
        )
