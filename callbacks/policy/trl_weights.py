"""What vLLM is given to serve: every copy of weights to an engine goes through `engine_weights`.

An engine knows weights by their names in a plain checkpoint. Wrappers (DDP, DeepSpeed, FSDP, torch.compile, activation
checkpointing) and PEFT add to them. The frozen base is wrapped where TRL's own policy is not, so all of that is removed
here, for the policy and the base alike.

TRL merges an adapter into the base's weights, copies them, and unmerges: in bfloat16 W + d - d is not W, and the base,
which with PEFT is the KL reference too, drifts at every step. Here a layer is merged while it is copied, and then every
bit of it is put back. With its adapter disabled a PEFT model is served as the base. Read against trl 1.16, peft 0.21.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Any, cast

import torch
from accelerate.utils import is_peft_model
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel

from offleash.callbacks.policy.trainer_protocol import PolicyTrainer
from offleash.callbacks.policy.trl_internals import VllmInternals, vllm_of
from offleash.eval.errors import ConfigError

WRAPPERS = {"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}
"""Parts of a name that torch.compile, FSDP and activation checkpointing add at any depth."""
ROOT = "module"
"""What DDP, DataParallel and DeepSpeed add in front; deeper it may be a name of the model's own."""

Gather = Callable[[list[torch.nn.Parameter]], AbstractContextManager[Any]]


def engine_name(name: str) -> str:
    """The name of a weight in a plain checkpoint, from its name in a wrapped model."""
    parts = [part for part in name.split(".") if part not in WRAPPERS]
    while parts[0] == ROOT:
        parts.pop(0)
    return ".".join(parts)


def take_over_sync(trainer: PolicyTrainer) -> None:
    """Give the engine its weights by `engine_weights` from now on. Calling it again changes nothing.

    Relies on `sync_weights` of `vllm_generation` copying what `_iter_named_params` yields.
    """
    if trainer.use_vllm:
        generation = vllm_of(trainer)
        generation._iter_named_params = partial(engine_weights, generation)


def serve(trainer: PolicyTrainer, model: Any) -> None:
    """Let vLLM serve this model, wrapped or not, from its next draw on.

    Relies on `vllm_generation.model`, whose weights are copied to the engine when `_last_loaded_step` is not the
    current step, and on `_weight_metadata`, names and types announced to a server, being made anew when it is None.
    """
    generation = vllm_of(trainer)
    generation.model, generation._weight_metadata = model, None
    cast(VllmInternals, trainer)._last_loaded_step = -1


def engine_weights(generation: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """(name, weight) of the model to be served, whole and on the device, one after another. Collective.

    `generation` is TRL's `VLLMGeneration`. Relies on its `model`, `accelerator` and `_dist`, and without PEFT on its
    `_iter_named_params`, which gathers what ZeRO-3 and FSDP have split.
    """
    held = generation.model
    model = unwrapped(held)
    reshard(model)
    try:
        generation.model = model
        dist = generation._dist
        if is_peft_model(model) and dist.fsdp_version != 1:
            check_mergeable(model)
            found = _peft_weights(model.get_base_model(), dist.gather_params, generation.accelerator.device)
        else:
            found = type(generation)._iter_named_params(generation)
        for name, weight in found:
            yield engine_name(name), weight
    finally:
        generation.model = held


def unwrapped(model: Any) -> Any:
    """Without what DDP and DeepSpeed put around a model. FSDP 1 stays: it gathers by its wrapper."""
    while isinstance(getattr(model, ROOT, None), torch.nn.Module) and not isinstance(model, FullyShardedDataParallel):
        model = getattr(model, ROOT)
    return model


def reshard(model: Any) -> None:
    """Split again what FSDP 2 has left whole: after a forward pass without a backward one the last layers are."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def has_adapter_off(model: Any) -> bool:
    """Whether a PEFT model is the model without its adapter at the moment."""
    # A model of transformers has a method of that name.
    return any(getattr(each, "disable_adapters", None) is True for each in unwrapped(model).modules())


def check_mergeable(model: Any) -> None:
    """Raise ConfigError for an adapter that is no change of weights, or is on a weight that two layers share."""
    from peft.tuners.tuners_utils import BaseTuner, BaseTunerLayer

    kinds = sorted({str(config.peft_type.value) for config in model.peft_config.values()})
    if not isinstance(model.base_model, BaseTuner):
        raise ConfigError(f"vLLM cannot serve a {'/'.join(kinds)} adapter in training: use LoRA, or use_vllm: false")
    head = model.get_output_embeddings()
    embedded = model.get_input_embeddings()
    if isinstance(head, BaseTunerLayer) and head.get_base_layer().weight is getattr(embedded, "weight", None):
        raise ConfigError(
            "vLLM cannot serve an adapter on an output layer that shares its weights with the embeddings: leave it out "
            "of lora_target_modules, or use_vllm: false"
        )


def _peft_weights(
    module: torch.nn.Module, gather: Gather, device: torch.device, prefix: str = "", seen: set[int] | None = None
) -> Iterator[tuple[str, torch.Tensor]]:
    """The weights below a module as its adapters make them, under the names they have without PEFT, tied ones once."""
    from peft.tuners.tuners_utils import BaseTunerLayer
    from peft.utils import AuxiliaryTrainingWrapper

    seen = set() if seen is None else seen
    if isinstance(module, AuxiliaryTrainingWrapper):  # modules_to_save, trainable_token_indices
        yield from _peft_weights(_module_in_use(module), gather, device, prefix, seen)
    elif isinstance(module, BaseTunerLayer):
        base = module.get_base_layer()
        with gather(list(module.parameters())), merged(module):
            # Copies: a server's client packs many weights before it sends them.
            for name, weight in _own(base.named_parameters(prefix=prefix), seen, device):
                yield name, weight.clone()
    else:
        for name, weight in module.named_parameters(prefix=prefix, recurse=False):
            with gather([weight]):
                yield from _own([(name, weight)], seen, device)
        for name, child in module.named_children():
            yield from _peft_weights(child, gather, device, f"{prefix}.{name}" if prefix else name, seen)


def _own(
    weights: Iterable[tuple[str, torch.nn.Parameter]], seen: set[int], device: torch.device
) -> Iterator[tuple[str, torch.Tensor]]:
    for name, weight in weights:
        if id(weight) not in seen:
            seen.add(id(weight))
            whole: Any = weight  # with FSDP 2 a part of it
            yield name, whole.to(device).full_tensor() if hasattr(whole, "full_tensor") else weight.data


def _module_in_use(wrapper: Any) -> torch.nn.Module:
    """What a PEFT wrapper without a merge of its own computes with at the moment."""
    if hasattr(wrapper, "token_adapter"):
        return cast(torch.nn.Module, wrapper.token_adapter)
    if wrapper.disable_adapters or not wrapper.active_adapters:
        return cast(torch.nn.Module, wrapper.original_module)
    return cast(torch.nn.Module, wrapper.modules_to_save[wrapper.active_adapters[0]])


@contextmanager
def merged(layer: Any) -> Iterator[None]:
    """Inside the block the layer's weights have its adapter in them, unless it is disabled; then each bit is as before.

    Relies on PEFT's `merge`, which may write to the weights or replace them, and `unmerge`, which rounds.
    """
    from peft.tuners.tuners_utils import BaseTunerLayer

    # A layer may be wrapped several times, one adapter for each of its parameters.
    layers = [each for each in layer.modules() if isinstance(each, BaseTunerLayer)]
    if any(each.disable_adapters or each.merged for each in layers):
        yield
        return
    base = layer.get_base_layer()
    before = [(name, weight, weight.detach().clone()) for name, weight in base.named_parameters()]
    with ExitStack() as after:
        for name, weight, bits in before:
            after.callback(_put_back, base, name, weight, bits)
        for each in layers:
            each.merge()
            after.callback(each.unmerge)
        yield


def _put_back(module: torch.nn.Module, name: str, weight: torch.nn.Parameter, bits: torch.Tensor) -> None:
    owner, _, leaf = name.rpartition(".")
    module.get_submodule(owner).register_parameter(leaf, weight)
    with torch.no_grad():
        weight.copy_(bits)
