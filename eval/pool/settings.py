"""How pools are sampled: every setting beside the model, the task and the folder, checked when made.

Nothing heavy is imported here, so that a command can refuse its arguments at once.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from offleash.eval.errors import ConfigError
from offleash.eval.flags import json_setting, setting
from offleash.eval.pool.spec import MAX_K
from offleash.eval.sampling import Plan, Sampling, is_int

MAX_NEW_TOKENS = 4096
DTYPES = ("auto", "float32", "bfloat16", "float16")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """How a model is loaded, prompted and its results saved: what sampling and scoring have in common."""

    template: str = setting(
        "auto", "auto: chat messages go through the tokenizer's chat template if it has one; plain: never; or a file"
    )
    template_args: Mapping[str, Any] = json_setting('arguments of the template: {"enable_thinking": false}')
    dtype: str = setting("auto", "auto: what the model's config says", choices=DTYPES)
    revision: str | None = setting(None, "branch, tag or commit of a hub model")
    tokenizer: str | None = setting(None, "hub id or folder, if not the model's own")
    save_every: float = setting(10.0, "seconds between writes", metavar="SECONDS")


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleSettings(ModelSettings):
    """How pools are sampled: everything but the model, the tasks and the folders. Checked when made."""

    k: int
    """Samples per problem; with `successes`, the maximum."""
    sampling: Sampling | Mapping[str, Any] | None = None
    """Or the fields of one. Without max_new_tokens: 4096, or what the model's context leaves for the longest prompt."""
    successes: int | None = None
    """Stop sampling a problem at this many correct completions."""
    seed: int = setting(0, "seed of the pool")
    limit: int | None = setting(None, "only the first N problems", metavar="N")
    ids: Sequence[str] = setting((), "only these problems; @FILE reads one id per line", nargs="+", metavar="ID")
    shard: str | None = setting(
        None, "only every N-th problem, from the I-th on: one of N machines; offleash merge joins them", metavar="I/N"
    )
    end_tokens: Sequence[str] = setting(
        (),
        "further tokens that end a completion, beside those of the tokenizer and generation_config",
        flag="--end-token",
        nargs="+",
        metavar="TOKEN",
    )
    engine: str | None = setting(
        None, "transformers (default), vllm, openai (default for a URL), or my_module:MyEngine"
    )
    engine_args: Mapping[str, Any] = json_setting(
        'transformers: {"batch_size": 64}; vllm: anything LLM() takes, {"tensor_parallel_size": 2}; '
        'openai: {"concurrency": 64, "timeout": 1800, "retries": 6, "extensions": true}'
    )
    ray: str | None = setting(
        None,
        "run engines in the workers of a Ray cluster: HOST:PORT, auto, or nothing for RAY_ADDRESS or this machine",
        nargs="?",
        const="",
        metavar="ADDRESS",
    )
    ray_workers: int | None = setting(
        None, "number of engines; default one per GPU, or per machine without GPUs", metavar="N"
    )
    served_model: str | None = setting(None, "name of the model, for a server that has several", metavar="NAME")
    max_verifier_failures: float = setting(
        0.01,
        "share of verdicts on which the verifier may fail, but for the worst problem, before sampling stops",
        metavar="SHARE",
    )

    def __post_init__(self) -> None:
        wanted = {
            "k": (is_int(self.k) and 1 <= self.k <= MAX_K, f"an integer, at least 1 and at most {MAX_K:,}"),
            "seed": (is_int(self.seed), "an integer"),
            "limit": (self.limit is None or (is_int(self.limit) and self.limit >= 1), "an integer, at least 1"),
            "dtype": (self.dtype in DTYPES, f"one of {', '.join(DTYPES)}"),
            "save_every": (self.save_every >= 0, "0 seconds or more"),
            "max_verifier_failures": (0 <= self.max_verifier_failures <= 1, "between 0 and 1"),
        }
        for name, (good, what) in wanted.items():
            if not good:
                raise ConfigError(f"{name} must be {what}; got {getattr(self, name)!r}")
        if self.ray is None and self.ray_workers is not None:
            raise ConfigError("ray_workers is for ray: give the address of a cluster, or leave both out")
        Plan(successes=self.successes)
        shard_of(self.shard)
        Sampling(**{"max_new_tokens": MAX_NEW_TOKENS, **self.sampling_fields()})

    def sampling_fields(self) -> dict[str, Any]:
        """Those of a `Sampling`; without max_new_tokens it is left to the model's context."""
        given = asdict(self.sampling) if isinstance(self.sampling, Sampling) else dict(self.sampling or {})
        known = [field.name for field in fields(Sampling)]
        if unknown := sorted(set(given) - set(known)):
            raise ConfigError(f"sampling has no field {', '.join(unknown)}; its fields are {', '.join(known)}")
        return given


def shard_of(text: str | None) -> tuple[int, int]:
    """(I, N) of `I/N`; None is 1/1. Raises ConfigError for anything else."""
    found = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", text or "1/1")
    if found is None or not 1 <= int(found[1]) <= int(found[2]):
        raise ConfigError(f"shard must be I/N with I from 1 to N, such as 2/4; got {text!r}")
    return int(found[1]), int(found[2])
