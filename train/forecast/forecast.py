"""A forecast of a recipe: the memory that each GPU needs, and the time of training and of monitoring."""

from dataclasses import dataclass
from math import ceil

from offleash.callbacks.policy.pool import STREAM
from offleash.callbacks.policy.trl_trimming import ADDS_UP_BY_ROW
from offleash.eval.errors import OffleashError
from offleash.eval.sampling import is_untruncated
from offleash.train.explorers import load_explorers
from offleash.train.explorers.samples.anchor import Anchor
from offleash.train.forecast.cost import (
    forward_seconds,
    measurements,
    rollout_seconds,
    rounds_seconds,
    update_seconds,
)
from offleash.train.forecast.disk import Disk, disk
from offleash.train.forecast.hardware import Device, Machines
from offleash.train.forecast.lengths import Lengths
from offleash.train.forecast.memory import (
    CONTEXT_BYTES,
    FULL,
    HALF,
    Layout,
    generating,
    states,
    training,
    vllm_sequences,
)
from offleash.train.forecast.model_size import ModelSize
from offleash.train.recipe.config import Recipe

MOMENTS = {"adamw_8bit": 2, "adamw_bnb_8bit": 2, "paged_adamw_8bit": 2, "adafactor": 0, "sgd": 0}
"""Bytes of optimizer state per float32 parameter; 8, as for AdamW, for any other."""
MONITOR_CACHE = "cache of the monitor's samples"


@dataclass(frozen=True, slots=True)
class Forecast:
    memory: dict[str, float]
    """Bytes on each GPU by part, at peak."""
    vllm_sequences: float | None
    """Sequences of full length that fit in each engine at once; None without vLLM on these GPUs."""
    steps: int | None
    """None if it follows from the number of problems, which is not known."""
    rollouts: float
    """Per step, over all GPUs."""
    rollout_seconds: float
    update_seconds: float
    measurements: int | None
    samples: int | None
    """Of one measurement, at most; None if the number of probe problems is not known."""
    measure_seconds: float | None
    """With all of these samples: how many a plan that stops early will need is not known before."""
    disk: Disk | None = None
    """None without checkpoints."""

    @property
    def bytes(self) -> float:
        return sum(self.memory.values())

    @property
    def step_seconds(self) -> float:
        return self.rollout_seconds + self.update_seconds

    @property
    def training_seconds(self) -> float | None:
        return None if self.steps is None else self.steps * self.step_seconds

    @property
    def monitoring_seconds(self) -> float | None:
        if self.measurements is None or self.measure_seconds is None:
            return None
        return self.measurements * self.measure_seconds


def layout_of(recipe: Recipe, machines: Machines, prompt_tokens: int, probes: int | None = None) -> Layout:
    """The memory settings of a recipe. `prompt_tokens` is the longest prompt, `probes` the number of probe problems."""
    run, config, model = recipe
    monitored = 0 if config.use_vllm or not run.monitor_every else run.monitor_batch_size
    if probes is not None:
        monitored = min(monitored, ceil(probes * run.monitor_k / machines.gpus))
    monitored_length = prompt_tokens + (run.monitor_max_new_tokens or config.max_completion_length)
    colocated = config.use_vllm and config.vllm_mode == "colocate"
    return Layout(
        gpus=machines.gpus,
        sharding=machines.sharding,
        half=bool(config.bf16 or config.fp16),
        weight_bytes=HALF if model.dtype in ("bfloat16", "float16") else FULL,
        moments_bytes=MOMENTS.get(str(getattr(config.optim, "value", config.optim)), 8),
        reference=config.beta > 0,
        base_copy=_copies_base(recipe),
        checkpointing=bool(config.gradient_checkpointing),
        micro_batch=config.per_device_train_batch_size,
        tokens=prompt_tokens + config.max_completion_length,
        rollouts=0 if config.use_vllm else config.per_device_train_batch_size * config.steps_per_generation,
        monitor_tokens=monitored * monitored_length,
        vllm_share=config.vllm_gpu_memory_utilization if colocated else 0.0,
        vllm_gpus=config.vllm_tensor_parallel_size if colocated else 1,
        sleeps=bool(config.vllm_enable_sleep_mode),
    )


def forecast(
    recipe: Recipe,
    model: ModelSize,
    machines: Machines,
    lengths: Lengths,
    longest_prompt: int,
    problems: int | None,
    probes: int | None,
    monitor_lengths: Lengths | None = None,
    *,
    with_images: bool = False,
) -> Forecast:
    """The forecast for a recipe, the sizes of its model and tasks, and the machines.

    `problems` and `probes` are None if not known. `monitor_lengths` are given if they differ from those of training.
    Rows `with_images` stay in the micro-batches that they are drawn in.
    """
    run, config = recipe.run, recipe.training
    layout, monitored = layout_of(recipe, machines, longest_prompt, probes), monitor_lengths or lengths
    trained = config.per_device_train_batch_size * machines.gpus * config.gradient_accumulation_steps
    generated = config.per_device_train_batch_size * machines.gpus * config.steps_per_generation
    rollouts, steps = trained / config.num_iterations, _steps(recipe, problems, trained)
    sequences = vllm_sequences(model, layout, machines.device.memory) if layout.vllm_share else None
    engine = {"engine_gpus": layout.vllm_gpus, "weight_bytes": HALF if config.use_vllm else layout.weight_bytes}
    most = config.per_device_train_batch_size * layout.vllm_gpus * config.steps_per_generation
    at_once = _at_once(layout, lengths, sequences, most)
    in_step = min(config.gradient_accumulation_steps, config.steps_per_generation)
    by_length = config.loss_type in ADDS_UP_BY_ROW and not with_images
    dealt = in_step * config.per_device_train_batch_size if by_length else None
    measure_seconds = None
    if probes is not None:
        limit = _at_once(layout, monitored, sequences, most) if config.use_vllm else run.monitor_batch_size
        scored = probes * min(run.monitor_score_k, run.monitor_successes or run.monitor_k)
        drawn = probes * run.monitor_k
        per_round = run.monitor_batch_size * machines.gpus * (STREAM if layout.vllm_share else 1)
        measure_seconds = rounds_seconds(model, machines, drawn, monitored, limit, per_round, **engine)
        # Under policy and base, in batches by length.
        batches = monitored.padded(config.per_device_train_batch_size, scored / machines.gpus)
        measure_seconds += 2 * forward_seconds(model, machines, scored, batches)
    return Forecast(
        memory=_peak(model, layout, machines.device),
        vllm_sequences=sequences,
        steps=steps,
        rollouts=rollouts,
        rollout_seconds=rollout_seconds(model, machines, generated, lengths, at_once, **engine) * rollouts / generated,
        update_seconds=update_seconds(
            *(model, machines, trained, lengths.padded(config.per_device_train_batch_size, dealt)),
            checkpointing=layout.checkpointing,
            reference=layout.reference,
            old=_takes_old_logps(recipe),
            iterations=config.num_iterations,
        ),
        measurements=measurements(steps, run.monitor_every),
        samples=None if probes is None else probes * run.monitor_k,
        measure_seconds=measure_seconds,
        disk=disk(recipe, model, layout),
    )


def _copies_base(recipe: Recipe) -> bool:
    """Whether `FrozenBase` loads the base, for the monitor's KL or an explorer, as no fixed reference can serve."""
    run, config, model = recipe
    try:
        explorers = load_explorers(run.explorers)
    except OffleashError:  # training will report them
        explorers = []
    moves = any(explorer.moves_reference for explorer in explorers)
    if model.use_peft or (config.beta > 0 and not moves):
        return False
    scored = any(explorer.needs_base_logps or isinstance(explorer, Anchor) for explorer in explorers)
    return scored or bool(run.monitor_every and _measures_kl(recipe))


def _measures_kl(recipe: Recipe) -> bool:
    """As in `SupportCallback`: if it samples without truncation at the training temperature."""
    run, config = recipe.run, recipe.training
    top_p = config.top_p if run.monitor_top_p is None else run.monitor_top_p
    plain = is_untruncated(top_p, config.top_k or 0, config.min_p or 0.0, config.repetition_penalty)
    return plain and run.monitor_temperature in (None, config.temperature)


def _at_once(layout: Layout, lengths: Lengths, sequences: float | None, most: int) -> float:
    """How many sequences of mean length an engine runs: as many as fit, at most those of its training rollouts."""
    if sequences is None:
        return layout.rollouts or 256
    return min(max(1.0, sequences * layout.tokens / lengths.both), most)


def _peak(model: ModelSize, layout: Layout, device: Device) -> dict[str, float]:
    """The larger of two phases: the update (vLLM keeps its share unless it sleeps) and generation."""
    held = states(model, layout)
    if device.name != "cpu":
        held["CUDA context"] = CONTEXT_BYTES
    update, drawn = training(model, layout), generating(model, layout, device.memory)
    rollouts = layout.rollouts * layout.tokens >= layout.monitor_tokens
    name = "vLLM's share" if layout.vllm_share else "cache of rollouts" if rollouts else MONITOR_CACHE
    if layout.vllm_share and not layout.sleeps:
        return {**held, **update, name: drawn}
    return {**held, **update} if sum(update.values()) > drawn else {**held, name: drawn}


def _takes_old_logps(recipe: Recipe) -> bool:
    """As in GRPOTrainer (TRL 1.16): for off-policy updates, or importance sampling correction of vLLM's samples."""
    config = recipe.training
    off_policy = config.gradient_accumulation_steps % (config.steps_per_generation * config.num_iterations) != 0
    return bool(off_policy or (config.use_vllm and config.vllm_importance_sampling_correction))


def _steps(recipe: Recipe, problems: int | None, trained: int) -> int | None:
    config = recipe.training
    if config.max_steps > 0:
        return int(config.max_steps)
    if problems is None:
        return None
    return ceil(config.num_train_epochs * problems * config.num_generations * config.num_iterations / trained)
