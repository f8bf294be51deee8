"""Which model is sampled: a name resolved to what libraries load, the tokenizer, and a fingerprint of the weights.

A model is a hub id, a folder (a checkpoint is one), a folder with a PEFT adapter, or an embedded model's
name (`lab`, ...). Nothing heavy happens here: a pool of other weights is an error before any weight is loaded.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from offleash.eval.errors import ConfigError, first_line
from offleash.eval.fingerprint import weights_fingerprint
from offleash.recipes import EMBEDDED, embedded_folder

NAMED = " or ".join(map(repr, EMBEDDED))


@dataclass(frozen=True, slots=True)
class ModelSource:
    """What an engine needs to load a model, and what a pool records of it."""

    name: str
    """As the user gave it."""
    path: str
    """The folder or hub id that libraries load; a server's URL."""
    revision: str
    weights: str
    dtype: str
    tokenizer: Any | None
    end_ids: tuple[int, ...]
    """The tokens that end a completion; () leaves them to the server."""
    context: int | None
    """The model's context length, if known."""
    adapter: str | None = None

    @property
    def extra_end_tokens(self) -> tuple[str, ...]:
        """The end tokens besides the tokenizer's own, which the template's fingerprint knows about."""
        if self.tokenizer is None:
            return ()
        extra = [i for i in self.end_ids if i != self.tokenizer.eos_token_id]
        return tuple(str(token) for token in self.tokenizer.convert_ids_to_tokens(extra))


def resolve_model(
    name: str,
    *,
    revision: str | None = None,
    tokenizer: str | None = None,
    dtype: str = "auto",
    end_tokens: Sequence[str] = (),
) -> ModelSource:
    """Find a model and read its small files. `dtype` "auto" is the one in its config; `end_tokens` are additional."""
    if not name.strip():
        raise ConfigError(f"model (--model) is empty: give a hub id, a folder, an adapter's folder, or {NAMED}")
    folder = embedded_folder(name) or Path(name)
    if not folder.exists() and (name.startswith(("/", "./", "../", "~")) or name.count("/") > 1):
        raise ConfigError(f"model folder {name} does not exist")
    adapter = folder if (folder / "adapter_config.json").is_file() else None
    path = _adapted_model(adapter) if adapter else (str(folder) if folder.is_dir() else name)
    if revision is not None and Path(path).is_dir():
        raise ConfigError(f"revision (--revision) is for models on the hub, but {name} is a local folder: leave it out")
    config = _read("config", path, revision)
    commit = commit_hash(config)
    has_its_own = adapter is not None and (adapter / "tokenizer_config.json").is_file()
    words = load_tokenizer(tokenizer or (str(adapter) if has_its_own else path), None if tokenizer else revision)
    text_config = config.get_text_config()
    if dtype == "auto":
        dtype = str(getattr(text_config, "dtype", None) or "float32").removeprefix("torch.")
    return ModelSource(
        name=name,
        path=path,
        revision=commit if not Path(path).is_dir() else "",
        weights=_weights(path, commit, adapter),
        dtype=dtype,
        tokenizer=words,
        end_ids=_end_ids(words, path, revision, text_config, end_tokens),
        context=getattr(text_config, "max_position_embeddings", None),
        adapter=str(adapter) if adapter else None,
    )


def commit_hash(config: Any) -> str:
    """The hub's commit that a config came from; empty if it came from a folder."""
    return getattr(config, "_commit_hash", None) or ""


def is_url(model: str) -> bool:
    """Whether a model's name is the address of a server."""
    return model.startswith(("http://", "https://"))


def load_tokenizer(place: str, revision: str | None = None) -> Any:
    return _read("tokenizer", place, revision)


def _read(what: str, place: str, revision: str | None) -> Any:
    from transformers import AutoConfig, AutoTokenizer  # seconds to import, and a server needs none of it

    loader = AutoConfig if what == "config" else AutoTokenizer
    try:
        return loader.from_pretrained(place, revision=revision)
    except Exception as error:  # a missing repository, no network; mangled files raise nearly anything
        kind = "folder" if Path(place).is_dir() else "hub id or folder"
        raise ConfigError(
            f"cannot read the {what} of model {place!r} ({kind}): {first_line(error)}. Check the name; a model is a "
            f"hub id, a folder, an adapter's folder, {NAMED}, or a server's URL"
        ) from error


def _adapted_model(adapter: Path) -> str:
    """The base model of a PEFT adapter."""
    try:
        base = json.loads((adapter / "adapter_config.json").read_text(encoding="utf-8"))["base_model_name_or_path"]
    except (OSError, ValueError, TypeError, LookupError):
        base = None
    if not base:
        raise ConfigError(f"{adapter}/adapter_config.json does not say which model it adapts (base_model_name_or_path)")
    return str(base)


def _weights(path: str, commit: str, adapter: Path | None) -> str:
    if Path(path).is_dir():
        return weights_fingerprint(path, *([adapter] if adapter else []))
    if not commit:
        raise ConfigError(f"the hub did not report the commit of {path!r}: download the model and give its folder")
    # A commit names its content, and hashing what may not be downloaded yet would wait for it.
    return f"hub:{path}@{commit}" + (f"+{weights_fingerprint(adapter)}" if adapter else "")


def _end_ids(
    tokenizer: Any, path: str, revision: str | None, text_config: Any, end_tokens: Sequence[str]
) -> tuple[int, ...]:
    """The tokenizer's end token, those in generation_config.json, and the user's."""
    from transformers import GenerationConfig

    try:
        stated = GenerationConfig.from_pretrained(path, revision=revision).eos_token_id
    except (OSError, TypeError):  # it has none, or no object
        stated = getattr(text_config, "eos_token_id", None)
    stated = stated if isinstance(stated, list) else [stated]
    ids = {*stated, tokenizer.eos_token_id, *token_ids(tokenizer, end_tokens)}
    return tuple(sorted(ids - {None}))


def token_ids(tokenizer: Any, tokens: Sequence[str]) -> list[int]:
    """The ids of single tokens. Raises ConfigError for a text that is not a single token."""
    ids = []
    for token in tokens:
        found = tokenizer.convert_tokens_to_ids(token)
        if found is None or (found == tokenizer.unk_token_id and token != tokenizer.unk_token):
            raise ConfigError(f"{token!r} is not one token of this model: use a stop string instead")
        ids.append(int(found))
    return ids
