"""inspect's logs: epochs are indices, letters are scores, zstd or deflate, and nothing that unpacks without end."""

import json
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from offleash.eval.convert.readers import inspect_archive
from offleash.eval.convert.readers.record import Reading
from offleash.eval.errors import ConfigError

Maker = Callable[..., Any]
HEADER = {
    "version": 2,
    "status": "success",
    "eval": {
        "task": "gsm8k",
        "model": "vllm/my-model",
        "dataset": {"samples": 2},
        "config": {"epochs": 3},
        "model_generate_config": {"temperature": 0.7, "top_p": 0.9},
    },
    "plan": {"config": {"temperature": 0.6, "max_tokens": 512}},
}


def sample(name: Any, epoch: int, value: Any, reply: str = "ANSWER: 4", **more: Any) -> dict[str, Any]:
    return {
        "id": name,
        "epoch": epoch,
        "input": [{"id": f"message-{name}-{epoch}", "role": "user", "content": f"Question {name}?", "source": "input"}],
        "target": "4",
        "messages": [],
        "output": {
            "model": "my-model",
            "choices": [{"message": {"role": "assistant", "content": reply}, "stop_reason": "stop"}],
            "completion": reply,
            "usage": {"input_tokens": 9, "output_tokens": 5, "total_tokens": 14},
        },
        "scores": {"match": {"value": value, "answer": reply.removeprefix("ANSWER: ") or None}},
        "metadata": {},
        "uuid": f"{name}-{epoch}",
        **more,
    }


SAMPLES = [
    sample(1, 1, "C"),
    sample(1, 2, "I", "ANSWER: 5"),
    sample(1, 3, "C"),
    sample("two", 1, "N", ""),
    sample("two", 2, "I", "x", error={"message": "out of memory", "traceback": "", "traceback_ansi": ""}, scores=None),
    sample("two", 3, "I", "so lo", limit={"type": "token", "limit": 5.0}),
]


def members(samples: list[Any], header: Any = HEADER) -> dict[str, bytes]:
    made = {"_journal/start.json": b"{}", "header.json": json.dumps(header).encode()}
    return made | {f"samples/{one['id']}_epoch_{one['epoch']}.json": json.dumps(one).encode() for one in samples}


def write(path: Path, content: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in content.items():
            archive.writestr(name, data)
    return path


def write_zstd(path: Path, content: dict[str, bytes]) -> Path:
    """An archive with zstd members of two frames, as inspect writes them; zipfile cannot."""
    body, directory = b"", b""
    for name, data in content.items():
        packed = b"".join(pa.Codec("zstd").compress(half, asbytes=True) for half in (data[:9], data[9:]) if half)
        fields = (20, 0, 93, 0, 0, zlib.crc32(data), len(packed), len(data), len(name), 0)
        directory += struct.pack("<4s6H3L5H2L", b"PK\x01\x02", 20, *fields[:5], *fields[5:], 0, 0, 0, 0, len(body))
        directory += name.encode()
        body += struct.pack("<4s5H3L2H", b"PK\x03\x04", *fields) + name.encode() + packed
    counts = (0, 0, len(content), len(content), len(directory), len(body), 0)
    path.write_bytes(body + directory + struct.pack("<4s4H2LH", b"PK\x05\x06", *counts))
    return path


@pytest.mark.parametrize("writer", [write, write_zstd])
def test_hits_and_statuses_are_those_counted_by_hand(
    writer: Maker, tmp_path: Path, pool_of: Maker, pass_at_1: Maker
) -> None:
    made, pool = pool_of(writer(tmp_path / "log.eval", members(SAMPLES)))
    assert (made.format, made.problems, made.samples, made.correct) == ("inspect", 2, 6, 2)
    assert made.judged_by == "match"
    assert pass_at_1(pool) == pytest.approx({"1": 2 / 3, "two": 0.0})
    rows = pool.read(["problem_id", "index", "answer", "status", "tokens"]).to_pylist()
    assert [(row["index"], row["answer"], row["status"]) for row in rows if row["problem_id"] == "1"] == [
        (0, "4", "ok"),
        (1, "5", "ok"),
        (2, "4", "ok"),
    ]
    assert [row["status"] for row in rows if row["problem_id"] == "two"] == ["no_answer", "error", "ok"]
    assert rows[0]["tokens"] == 5
    assert pool.problems[0].prompt == [{"role": "user", "content": "Question 1?"}]


def test_the_model_and_its_sampling_are_read_from_the_header(tmp_path: Path, pool_of: Maker) -> None:
    _, pool = pool_of(write(tmp_path / "log.eval", members(SAMPLES)), sampling={"top_k": 5})
    spec = pool.spec
    assert (spec.model, spec.temperature, spec.top_p, spec.top_k) == ("vllm/my-model", 0.6, 0.9, 5)
    assert (spec.max_new_tokens, spec.min_p) == (512, -1)


def test_two_logs_of_one_task_add_up_and_others_do_not(tmp_path: Path, pool_of: Maker) -> None:
    first = write(tmp_path / "first.eval", members(SAMPLES[:2]))
    again = [sample(1, 1, "C", uuid="other-1"), sample(1, 2, "C", uuid="other-2"), sample("new", 1, "C", uuid="o3")]
    made, pool = pool_of([first, write(tmp_path / "second.eval", members(again))])
    assert (made.problems, made.samples, made.correct) == (2, 5, 4)
    assert [row["index"] for row in pool.read(["problem_id", "index"]).to_pylist() if row["problem_id"] == "1"] == [
        0, 1, 2, 3,
    ]  # fmt: skip
    copied = write(tmp_path / "copied.eval", members(SAMPLES[:1]))
    with pytest.raises(ConfigError, match=r"copied\.eval: .*repeats sample '1-1' of line 1 of .*first\.eval"):
        pool_of([first, copied], "other")
    hotter = {**HEADER, "plan": {"config": {"temperature": 1.0}}}
    with pytest.raises(ConfigError, match=r"mixes gsm8k, .*temperature 0\.6.* and gsm8k, .*temperature 1\.0"):
        pool_of([first, write(tmp_path / "hot.eval", members(again, hotter))], "other")


def test_a_sample_that_was_logged_again_counts_once_as_in_inspect(tmp_path: Path, pool_of: Maker) -> None:
    path = write(tmp_path / "log.eval", members(SAMPLES[:1]))
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        archive.writestr("samples/1_epoch_1.json", json.dumps(sample(1, 1, "I")))
    made, _ = pool_of(path)
    assert (made.samples, made.correct) == (1, 0)


def test_scores_of_every_kind_are_read_as_inspect_reads_them(tmp_path: Path, pool_of: Maker) -> None:
    values = ["C", "I", "yes", "No", "1", 1, True, 0.0]
    rows = [sample(f"s{i}", 1, value) for i, value in enumerate(values)]
    assert pool_of(write(tmp_path / "log.eval", members(rows)))[0].correct == 5
    unscored = [sample("a", 1, float("nan")), sample("a", 2, "C")]
    made, pool = pool_of(write(tmp_path / "nan.eval", members(unscored)), "nan")
    assert (made.correct, pool.read(["status"]).column("status").to_pylist()) == (1, ["error", "ok"])
    partial = write(tmp_path / "partial.eval", members([sample("a", 1, "P")]))
    with pytest.raises(ConfigError, match=r"match is 0\.5, neither 0 nor 1"):
        pool_of(partial, "partial")
    several = {"grade": {"value": {"exact": 1, "style": 0.2}, "answer": "4"}, "match": {"value": "I"}}
    path = write(tmp_path / "several.eval", members([sample("a", 1, "C", scores=several)]))
    with pytest.raises(ConfigError, match=r"3 scores \(grade/exact, grade/style, match\)"):
        pool_of(path, "several")
    made, pool = pool_of(path, "several", reading=Reading(correct="grade/exact"))
    assert (made.correct, pool.read(["answer"]).column("answer").to_pylist()) == (1, ["4"])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (members(SAMPLES, {**HEADER, "status": "error"}), "has status 'error', not 'success': .*eval-retry"),
        ({"_journal/start.json": b"{}"}, "an evaluation that has not ended"),
        ({"readme.txt": b"x"}, r"without header\.json: not an inspect log"),
        ({"header.json": b"[1]"}, r"header\.json cannot be read"),
        ({"header.json": b"[" * 200_000}, r"header\.json cannot be read"),
        (members([]), "has no samples"),
        ({**members([]), "samples/a.json": b"{" * 200_000}, "line 1 is not JSON"),
        ({**members([]), "samples/a.json": b'[' * 200_000}, "line 1 is not JSON"),
        ({**members([]), "samples/a.json": b"[1]"}, "line 1 is not JSON .is not a JSON object"),
        (members([sample("a", 0, "C")]), "line 1 has no id or no epoch"),
        (members([sample("a", 1, "C", input=None)]), "line 1 input must be text or chat messages"),
        (members([sample("a", 1, "great")]), "line 1 match is 'great', which is not a score"),
        (members([sample("a", 1, "C", output=[1])]), "line 1 output must be an object"),
        (members([sample("a", 1, "C", scores=None)]), "the file has 0 scores"),
        (members([sample("a", 1, "C", invalidation={"author": "x"})]), "line 1 was invalidated"),
    ],
)  # fmt: skip
def test_logs_that_cannot_be_trusted_are_refused(
    content: dict[str, bytes], message: str, tmp_path: Path, pool_of: Maker
) -> None:
    with pytest.raises(ConfigError, match=message):
        pool_of(write(tmp_path / "log.eval", content))
    assert not (tmp_path / "pool").exists()


@pytest.mark.parametrize("writer", [write, write_zstd])
def test_a_bomb_is_not_unpacked(writer: Maker, tmp_path: Path, pool_of: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspect_archive, "MEMBER_BYTES", 1_000_000)
    monkeypatch.setattr(inspect_archive, "TOTAL_BYTES", 3_000_000)
    monkeypatch.setattr(inspect_archive, "TOTAL_RATIO", 1)
    large = {**members(SAMPLES), "samples/large.json": b" " * 50_000_000}
    path = writer(tmp_path / "large.eval", large)
    assert path.stat().st_size < 100_000
    with pytest.raises(ConfigError, match=r"'samples/large\.json' unpacks to more than 1,000,000 bytes"):
        pool_of(path)
    many = [sample(i, 1, "C", messages=["x" * 900_000]) for i in range(5)]
    with pytest.raises(ConfigError, match=r"many\.eval unpacks to more than a log of its size can hold"):
        pool_of(writer(tmp_path / "many.eval", members(many)))


@pytest.mark.parametrize("writer", [write, write_zstd])
def test_damaged_archives_are_refused(writer: Maker, tmp_path: Path, pool_of: Maker) -> None:
    whole = writer(tmp_path / "whole.eval", members(SAMPLES)).read_bytes()
    damaged = tmp_path / "damaged.eval"
    for content in (b"", whole[: len(whole) // 2], b"PK\x03\x04" + whole[:50]):
        damaged.write_bytes(content)
        with pytest.raises(ConfigError, match=r"damaged\.eval is not a readable inspect log"):
            pool_of(damaged)
    place = whole.index(b"samples/1_epoch_1.json") + len("samples/1_epoch_1.json") + 10
    damaged.write_bytes(whole[:place] + bytes(byte ^ 255 for byte in whole[place : place + 20]) + whole[place + 20 :])
    with pytest.raises(ConfigError, match=r"damaged\.eval is not a readable inspect log"):
        pool_of(damaged)


def test_members_that_share_their_bytes_are_refused(tmp_path: Path, pool_of: Maker) -> None:
    path = write(tmp_path / "log.eval", members(SAMPLES[:2]), zipfile.ZIP_STORED)
    content = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        first, second = (archive.getinfo(f"samples/1_epoch_{i}.json").header_offset for i in (1, 2))
    place = content.index(struct.pack("<L", second) + b"samples/1_epoch_2.json")
    content[place : place + 4] = struct.pack("<L", first)
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="members that overlap"):
        pool_of(path)
