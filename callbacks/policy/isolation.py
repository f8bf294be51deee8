"""Measuring must not change training: random state, sampling settings and train mode come back as they were."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import numpy as np
import torch

from offleash.eval.sampling import Sampling


@contextmanager
def isolated_rng() -> Iterator[None]:
    """Give the block random state of its own to seed as it likes; the caller's is untouched afterwards."""
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_available() else []
    python_state, numpy_state = random.getstate(), np.random.get_state()
    mps_state = torch.mps.get_rng_state() if torch.backends.mps.is_available() else None
    with torch.random.fork_rng(devices=devices):
        try:
            yield
        finally:
            random.setstate(python_state)
            np.random.set_state(numpy_state)
            if mps_state is not None:
                torch.mps.set_rng_state(mps_state)


@contextmanager
def sampling_as(trainer: Any, sampling: Sampling) -> Iterator[None]:
    """Let the trainer's generation path sample with these settings (read against trl 1.16).

    TRL keeps them in `generation_config` and `generation_kwargs` for transformers, on `vllm_generation` for vLLM.
    """
    if trainer.use_vllm:
        values: dict[str, Any] = {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "min_p": sampling.min_p,
            "repetition_penalty": sampling.repetition_penalty,
            "max_completion_length": sampling.max_new_tokens,
        }
        before = {name: getattr(trainer.vllm_generation, name) for name in values}
        try:
            for name, value in values.items():
                setattr(trainer.vllm_generation, name, value)
            yield
        finally:
            for name, value in before.items():
                setattr(trainer.vllm_generation, name, value)
        return
    config, kwargs = trainer.generation_config, trainer.generation_kwargs
    # min_p = 0 keeps everything; None spares transformers the warper
    overlay = {**asdict(sampling), "min_p": sampling.min_p or None, "do_sample": True}
    del overlay["stop"]  # TRL's rollouts have no stop texts
    try:
        trainer.generation_config = type(config)(**{**config.to_dict(), **overlay})
        trainer.generation_kwargs = {**kwargs, **overlay}
        yield
    finally:
        trainer.generation_config, trainer.generation_kwargs = config, kwargs
