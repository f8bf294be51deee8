"""Unpacking zlib and gzip with a bound: a few kilobytes of it can hold gigabytes."""

import zlib

_EITHER = zlib.MAX_WBITS | 32  # zlib or gzip, by the header


def inflate(data: bytes | bytearray, limit: int) -> bytes:
    """What `data` unpacks to. Raises ValueError if it is damaged, cut short, or more than `limit` bytes."""
    unpacker = zlib.decompressobj(_EITHER)
    try:
        content = unpacker.decompress(data, limit + 1)
    except zlib.error as error:
        raise ValueError(f"damaged compressed data: {error}") from error
    if len(content) > limit:
        raise ValueError(f"compressed data that unpacks to more than {limit:,} bytes")
    if not unpacker.eof:
        raise ValueError("compressed data that ends too soon")
    return content
