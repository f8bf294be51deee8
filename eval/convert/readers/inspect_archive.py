"""Samples out of an inspect_ai log (`.eval`): a zip archive of JSON, of which a few kilobytes can hold gigabytes.

One member is unpacked at a time, none beyond MEMBER_BYTES, all of them together not beyond what an honest log of this
size can hold. inspect packs with zstd, which zipfile of Python before 3.14 cannot unpack and pyarrow can.

    header.json                     what was evaluated, by which model, and whether it was finished
    samples/{id}_epoch_{n}.json     one sample; of two with one name the later one counts, as in inspect
"""

import json
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa

from offleash.eval.errors import ConfigError

MEMBER_BYTES = 200_000_000
"""The most that one sample unpacks to."""
TOTAL_BYTES, TOTAL_RATIO = 1_000_000_000, 300
"""The most that all samples unpack to: the larger one of TOTAL_BYTES and TOTAL_RATIO times the size of the log."""
_ZSTD = 93
_KEPT = ("id", "epoch", "input", "target", "output", "scores", "error", "limit", "uuid", "attachments", "invalidation")
_SETTINGS = {"temperature": "temperature", "top_p": "top_p", "top_k": "top_k", "max_tokens": "max_new_tokens"}
"""Of inspect's settings, those that a pool records, and their names there."""
_LOCAL_HEADER = struct.Struct("<4s5H3L2H")


def inspect_rows(path: Path) -> Iterator[tuple[int, dict[str, Any] | Exception]]:
    """(number, sample), with the header's `eval` beside it; the exception instead if a sample is not JSON.

    Raises ConfigError if the log is not finished, damaged, or unpacks to too much.
    """
    try:
        with path.open("rb") as file, zipfile.ZipFile(file) as archive:
            header = _header(archive, file, path)
            members = {info.filename: info for info in archive.infolist()}
            of_samples = [
                one for name, one in members.items() if name.startswith("samples/") and name.endswith(".json")
            ]
            _check_overlap(of_samples, path)
            left = max(TOTAL_BYTES, TOTAL_RATIO * path.stat().st_size)
            for number, info in enumerate(of_samples, 1):
                content = _unpacked(archive, file, info, path)
                left -= len(content)
                if left < 0:
                    raise ConfigError(f"{path} unpacks to more than a log of its size can hold: it is not read further")
                yield number, _sample(content, header)
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, zlib.error) as error:
        raise ConfigError(
            f"{path} is not a readable inspect log: {str(error)[:120] or type(error).__name__}"
        ) from error


def _header(archive: zipfile.ZipFile, file: BinaryIO, path: Path) -> dict[str, Any]:
    """What was evaluated. Raises ConfigError if this is not an inspect log, or not the log of a finished evaluation."""
    names = set(archive.namelist())
    if "header.json" not in names:
        if "_journal/start.json" in names:
            raise ConfigError(
                f"{path} is the log of an evaluation that has not ended: finish it with inspect eval-retry"
            )
        raise ConfigError(f"{path} is a zip archive without header.json: not an inspect log")
    try:
        header = json.loads(_unpacked(archive, file, archive.getinfo("header.json"), path))
        about, status = dict(header["eval"]), header.get("status")
        about["plan"] = dict((header.get("plan") or {}).get("config") or {})
    except (AttributeError, ValueError, RecursionError, LookupError, TypeError) as error:
        raise ConfigError(f"{path}: header.json cannot be read ({type(error).__name__}: {str(error)[:80]})") from error
    if status != "success":
        raise ConfigError(f"{path} has status {status!r:.40}, not 'success': finish it with inspect eval-retry")
    return about


def inspect_settings(path: Path) -> dict[str, Any]:
    """The model that a log is of and how it was sampled, where the log says so."""
    with path.open("rb") as file, zipfile.ZipFile(file) as archive:
        return settings_of(_header(archive, file, path))


def settings_of(about: Mapping[str, Any]) -> dict[str, Any]:
    """The same from the `eval` of a header. The task's own settings override the model's."""
    merged: dict[str, Any] = {}
    for config in (about.get("model_generate_config"), about.get("plan")):
        merged |= (
            {name: value for name, value in config.items() if value is not None} if isinstance(config, dict) else {}
        )
    found = {ours: merged[theirs] for theirs, ours in _SETTINGS.items() if isinstance(merged.get(theirs), int | float)}
    return {"model": str(about.get("model") or "unknown"), **found}


def _sample(content: bytes, header: dict[str, Any]) -> dict[str, Any] | Exception:
    try:
        sample = json.loads(content)
    except (ValueError, RecursionError) as error:
        return error
    if not isinstance(sample, dict):
        return ValueError("is not a JSON object")
    return {name: sample.get(name) for name in _KEPT} | {"eval": header}


def _unpacked(archive: zipfile.ZipFile, file: BinaryIO, info: zipfile.ZipInfo, path: Path) -> bytes:
    """The content of a member, whatever size its entry claims."""
    if info.compress_type == _ZSTD:
        content = _zstd(_packed(file, info), MEMBER_BYTES)
        if zlib.crc32(content) != info.CRC and len(content) <= MEMBER_BYTES:
            raise zipfile.BadZipFile(f"{info.filename} is damaged (checksum)")
    else:
        with archive.open(info) as member:
            content = member.read(MEMBER_BYTES + 1)
    if len(content) > MEMBER_BYTES:
        raise ConfigError(f"{path}: {info.filename!r:.80} unpacks to more than {MEMBER_BYTES:,} bytes")
    return content


def _packed(file: BinaryIO, info: zipfile.ZipInfo) -> bytes:
    file.seek(info.header_offset)
    header = file.read(_LOCAL_HEADER.size)
    if len(header) < _LOCAL_HEADER.size or not header.startswith(b"PK\x03\x04"):
        raise zipfile.BadZipFile(f"{info.filename} has no local header")
    name, extra = _LOCAL_HEADER.unpack(header)[-2:]
    file.seek(name + extra, 1)
    return file.read(info.compress_size)


def _zstd(packed: bytes, limit: int) -> bytes:
    """At most one byte more than the limit."""
    try:
        with pa.input_stream(pa.BufferReader(packed), compression="zstd") as stream:
            content: bytes = stream.read(limit + 1)
    except (OSError, pa.ArrowException) as error:
        raise zipfile.BadZipFile(f"damaged zstd data: {error}") from error
    return content


def _check_overlap(members: list[zipfile.ZipInfo], path: Path) -> None:
    """Members that share bytes would unpack the same data over and over."""
    end = 0
    for info in sorted(members, key=lambda one: one.header_offset):
        if info.header_offset < end:
            raise ConfigError(f"{path} has members that overlap: not an honest archive")
        end = info.header_offset + _LOCAL_HEADER.size + info.compress_size
