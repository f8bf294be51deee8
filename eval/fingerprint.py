"""Fingerprints: a sha256 of exactly what a pool's samples depend on, so that two pools can be told apart or reused.

Each is over content, never over a path, a date or a file layout: the same problems, template or weights give the same
fingerprint on another machine, and nothing else does.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from offleash.eval.errors import ConfigError
from offleash.eval.problem import Problem

# The first pattern that matches holds the model, in the order transformers looks. The optimizer.bin, scheduler.bin and
# training_args.bin of a checkpoint match none.
_MODEL_FILES = ("model.safetensors", "model-*.safetensors", "*.safetensors", "pytorch_model*.bin")
_ADAPTER_FILES = ("adapter_model.safetensors", "adapter_model.bin")
# Fields of adapter_config.json that say where an adapter came from, not what it computes.
_ADAPTER_BOOKKEEPING = {"auto_mapping", "base_model_name_or_path", "inference_mode", "peft_version", "revision"}
_BLOCK = 1 << 22


def canonical_json(value: Any) -> str:
    """One text per value: sorted keys, no spaces, ASCII only. Raises ValueError or TypeError if JSON cannot hold it."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def problems_fingerprint(problems: Iterable[Problem]) -> str:
    """Over id, prompt and gold of every problem, in order. Metadata is left out: no sample depends on it."""
    digest = hashlib.sha256()
    for problem in problems:
        try:
            line = canonical_json([problem.id, problem.prompt, problem.gold])
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"problem {problem.id!r} cannot be written as JSON: {error}; put images in as data URLs"
            ) from error
        digest.update(line.encode() + b"\n")
    return digest.hexdigest()


def template_fingerprint(tokenizer: Any, arguments: Mapping[str, Any] | None = None) -> str:
    """Over what turns messages into token ids, and images into pixels: vocabulary, merges, special tokens, templates
    and the arguments that the template is given (`enable_thinking`).

    Takes a tokenizer or a processor holding one. Left out, because they change with use and not with the text: the
    truncation and padding a call leaves behind in a fast tokenizer, and the pad token, which trainers set.
    """
    inner = getattr(tokenizer, "tokenizer", tokenizer)
    template = getattr(tokenizer, "chat_template", None) or getattr(inner, "chat_template", None)
    special = {name: str(token) for name, token in inner.special_tokens_map.items() if name != "pad_token"}
    content = {"tokenizer": _tokenizer_content(inner), "chat_template": template, "special_tokens": special}
    if (pictures := getattr(tokenizer, "image_processor", None)) is not None:
        content["image_processor"] = json.loads(pictures.to_json_string())
    mark = hashlib.sha256(canonical_json(content).encode()).hexdigest()
    return hashlib.sha256(canonical_json([mark, dict(arguments)]).encode()).hexdigest() if arguments else mark


def _tokenizer_content(tokenizer: Any) -> dict[str, Any]:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return dict(tokenizer.get_vocab())
    content = json.loads(backend.to_str())
    return {key: value for key, value in content.items() if key not in ("truncation", "padding")}


def weights_fingerprint(model_dir: str | Path, *adapter_dirs: str | Path) -> str:
    """Over the weights in a model's folder, and in the folders of adapters put on it, in order.

    Safetensors are read tensor by tensor (name, dtype, shape, bytes), so that sharding the same weights differently
    changes nothing; `.bin` files are hashed as files. `config.json` is left out: libraries rewrite it without changing
    the model. An adapter's config is included, without bookkeeping fields, because it holds the adapter's scale.
    """
    digest = hashlib.sha256()
    for folder in (Path(model_dir), *map(Path, adapter_dirs)):
        files = _weight_files(folder)
        if not files:
            raise ConfigError(f"no weights in {folder}: expected one of {', '.join(_MODEL_FILES + _ADAPTER_FILES)}")
        _hash_tensors(digest, [path for path in files if path.suffix == ".safetensors"])
        for path in (path for path in files if path.suffix != ".safetensors"):
            size = path.stat().st_size
            digest.update(canonical_json([path.name, size]).encode())
            _hash_bytes(digest, path, 0, size)
        _hash_adapter_config(digest, folder)
    return digest.hexdigest()


def _weight_files(folder: Path) -> list[Path]:
    adapters = [path for name in _ADAPTER_FILES if (path := folder / name).is_file()]
    for pattern in _MODEL_FILES:
        model = sorted(path for path in folder.glob(pattern) if path not in adapters)
        if model:
            return model + adapters
    return adapters


def _hash_tensors(digest: Any, files: Sequence[Path]) -> None:
    tensors = sorted((name, path, entry) for path in files for name, entry in _safetensors_entries(path))
    for name, path, (dtype, shape, start, end) in tensors:
        digest.update(canonical_json([name, dtype, shape, end - start]).encode())
        _hash_bytes(digest, path, start, end)


def _safetensors_entries(path: Path) -> list[tuple[str, tuple[str, list[int], int, int]]]:
    """(name, (dtype, shape, first byte, last byte + 1)) of every tensor; the file is 8 bytes of length, JSON, bytes."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        first = 8 + length
        try:
            header = dict(json.loads(file.read(min(length, path.stat().st_size))))
            header.pop("__metadata__", None)
            return [
                (name, (item["dtype"], item["shape"], first + item["data_offsets"][0], first + item["data_offsets"][1]))
                for name, item in header.items()
            ]
        except (ValueError, TypeError, LookupError) as error:
            raise ConfigError(f"{path} is not a complete safetensors file: download or save it again") from error


def _hash_bytes(digest: Any, path: Path, start: int, end: int) -> None:
    with path.open("rb") as file:
        file.seek(start)
        while (left := end - file.tell()) > 0:
            block = file.read(min(left, _BLOCK))
            if not block:
                raise ConfigError(f"{path} ends {left} bytes early: download or save it again")
            digest.update(block)


def _hash_adapter_config(digest: Any, folder: Path) -> None:
    path = folder / "adapter_config.json"
    if path.is_file():
        config = json.loads(path.read_text(encoding="utf-8"))
        # PEFT keeps names of modules as sets, whose order changes from save to save.
        kept = {
            key: sorted(value, key=canonical_json) if isinstance(value, list) else value
            for key, value in config.items()
            if key not in _ADAPTER_BOOKKEEPING
        }
        digest.update(canonical_json(kept).encode())
