"""Compressed data is unpacked up to a limit, and never beyond it."""

import gzip
import tracemalloc
import zlib

import pytest

from offleash.eval.inflate import inflate

DATA = b"words " * 1000


@pytest.mark.parametrize("pack", [zlib.compress, gzip.compress])
def test_zlib_and_gzip_are_unpacked_up_to_the_limit(pack):
    assert inflate(pack(DATA), len(DATA)) == DATA
    with pytest.raises(ValueError, match="5,999"):
        inflate(pack(DATA), len(DATA) - 1)


def test_a_bomb_costs_no_more_than_the_limit():
    bomb = zlib.compress(bytes(50_000_000), 9)
    tracemalloc.start()
    with pytest.raises(ValueError, match="1,000,000"):
        inflate(bomb, 1_000_000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 5_000_000


@pytest.mark.parametrize(
    "data",
    [b"", b"no", gzip.compress(DATA, mtime=0)[:-9], b"\x1f\x8b" + bytes(40)],
    ids=["empty", "no archive", "cut", "garbled"],
)
def test_damaged_data_is_a_value_error(data):
    with pytest.raises(ValueError, match="compressed data"):
        inflate(data, 10**6)
