"""Values as patches: a value is most often an earlier one plus what the step wrote.

A patch is written against a *dictionary*: the bytes of an earlier value, followed by those
of the writes since. It works on bytes alone, so for every channel type and serde. Two ways,
of which the first byte tells:

* ``Z``: zstd with the dictionary as raw content, its tables sized to the dictionary, and no
  long-distance matching, which costs a multiple of the bytes for small changes.
* ``C``: copies out of the dictionary and literals between them, the literals in zstd with
  the writes as dictionary. For large values, where zstd's tables end: a change of a few
  places costs a few copies, whatever the size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgpack
import zstandard

from logstore.errors import CorruptObjectError

MIN_VALUE_BYTES = 256
"""Smaller values are stored as they are: a patch would not be smaller."""
_ZSTD_MAX_BYTES = 1 << 20
_MAX_DICTIONARY_BYTES = 256 << 20
_MAX_RATIO = 0.25
"""A patch of more than this part of its value is not worth it: stored whole, the value is
compressed together with its neighbours, which often hold the same, and a patch is not."""
_MAX_COPIES = 4096
_ANCHOR_BYTES = 48
_PROBE_STEP = 64
_MAX_PROBE_STEP = 64 << 10
_NEAR_BYTES = 16 << 10
_NEAR_STEPS = 2 << 10
_SCANS = 4
"""How many times the lengths of both values are searched at most."""


def encode_patch(value: bytes, base: bytes, writes: Sequence[bytes]) -> bytes | None:
    """A patch that makes `value` out of an earlier value and the writes since.

    Returns:
        The patch, or None if storing the value as it is would not be much larger.
    """
    written = b"".join(writes)
    if len(value) < MIN_VALUE_BYTES or len(base) + len(written) > _MAX_DICTIONARY_BYTES:
        return None
    if len(base) <= _ZSTD_MAX_BYTES and len(value) <= 2 * _ZSTD_MAX_BYTES:
        patch = b"Z" + _compress(value, base + written)
    else:
        patch = _encode_copies(value, base, written)
    return patch if len(patch) <= _MAX_RATIO * len(value) else None


def decode_patch(patch: bytes, base: bytes, writes: Sequence[bytes], size: int) -> bytes:
    """The value that a patch makes, at most `size` bytes.

    Raises:
        CorruptObjectError: the patch is damaged, claims another size, or its dictionary is
            not the one that it was made with.
    """
    written = b"".join(writes)
    way, body = patch[:1], patch[1:]
    if way == b"Z":
        value = _decompress(body, base + written, size)
    elif way == b"C":
        value = _decode_copies(body, base, written, size)
    else:
        raise CorruptObjectError(f"a patch of the unknown way {way!r}; upgrade logstore")
    if len(value) != size:
        raise CorruptObjectError(f"a patch gave {len(value)} bytes instead of {size}")
    return value


def _compress(value: bytes, dictionary: bytes) -> bytes:
    compressor = zstandard.ZstdCompressor(
        dict_data=_raw_dictionary(dictionary),
        compression_params=_parameters(len(value), len(dictionary)),
    )
    return compressor.compress(value)


def _raw_dictionary(content: bytes) -> zstandard.ZstdCompressionDict | None:
    # zstd takes no dictionary of less than eight bytes.
    if len(content) < 8:
        return None
    return zstandard.ZstdCompressionDict(content, dict_type=zstandard.DICT_TYPE_RAWCONTENT)


def _parameters(size: int, dictionary: int) -> zstandard.ZstdCompressionParameters:
    """Tables that hold the whole dictionary: the default ones of a level lose a large one."""
    if dictionary < 256 << 10:
        return zstandard.ZstdCompressionParameters.from_level(
            3,
            window_log=max(10, (size + dictionary).bit_length()),
            write_content_size=1,
            write_dict_id=0,
        )
    log = max(14, dictionary.bit_length())
    return zstandard.ZstdCompressionParameters.from_level(
        6,
        window_log=max(10, (size + dictionary).bit_length()),
        hash_log=log,
        chain_log=log,
        write_content_size=1,
        write_dict_id=0,
    )


def _decompress(body: bytes, dictionary: bytes, size: int) -> bytes:
    try:
        claimed = zstandard.frame_content_size(body)
        if claimed != size:
            raise CorruptObjectError(f"a patch claims {claimed} bytes instead of {size}")
        if size == 0:
            return b""
        return zstandard.ZstdDecompressor(
            dict_data=_raw_dictionary(dictionary), max_window_size=1 << 31
        ).decompress(body, max_output_size=size)
    except zstandard.ZstdError as error:
        raise CorruptObjectError(f"a patch cannot be decompressed: {error}") from error


def _encode_copies(value: bytes, base: bytes, written: bytes) -> bytes:
    """Runs of (literal length, copy offset, copy length), then the literals."""
    operations: list[int] = []
    literals = bytearray()
    at = 0
    for start, offset, length in _matches(value, base):
        operations += (start - at, offset, length)
        literals += value[at:start]
        at = start + length
    literals += value[at:]
    packed = _compress(bytes(literals), written)
    body: bytes = msgpack.packb([operations, len(literals), packed])
    return b"C" + body


def _decode_copies(body: bytes, base: bytes, written: bytes, size: int) -> bytes:
    try:
        operations, length, packed = msgpack.unpackb(body)
    except ValueError as error:
        raise CorruptObjectError(f"a patch cannot be read: {error}") from error
    if length > size:
        raise CorruptObjectError(f"a patch claims {length} literal bytes of {size}")
    literals = memoryview(_decompress(packed, written, length))
    source = memoryview(base)
    value = bytearray()
    taken = 0
    for literal, offset, copied in zip(*(iter(operations),) * 3, strict=True):
        value += literals[taken : taken + literal]
        taken += literal
        value += source[offset : offset + copied]
        if len(value) > size:
            raise CorruptObjectError(f"a patch makes more than {size} bytes")
    value += literals[taken:]
    return bytes(value)


def _matches(value: bytes, base: bytes) -> Iterator[tuple[int, int, int]]:
    """Long equal stretches, in the order of the value: its offset, the base's, the length.

    Values change in few places, so the next stretch begins soon after the last one in both:
    a short piece of the value is sought in the base from there on, and extended in both
    directions. Pieces are taken at growing distances until one is found again, and the whole
    search is bounded, so that values that have nothing in common cost little.
    """
    at = base_at = position = copies = 0
    step = _PROBE_STEP
    budget = _SCANS * (len(value) + len(base))
    while position + _ANCHOR_BYTES <= len(value) and copies < _MAX_COPIES and budget > 0:
        # Nearby first; the whole rest only when nothing nearby was found several times.
        near = base_at + position - at + _NEAR_BYTES
        end = len(base) if step > _NEAR_STEPS else min(near, len(base))
        found = base.find(value[position : position + _ANCHOR_BYTES], base_at, end)
        budget -= (end if found < 0 else found) - base_at
        if found < 0:
            position += step
            step = min(step * 2, _MAX_PROBE_STEP)
            continue
        back = _common_suffix(value, at, position, base, base_at, found)
        length = back + _common_prefix(value, position, base, found)
        start, offset = position - back, found - back
        yield start, offset, length
        copies += 1
        at = position = start + length
        base_at = offset + length
        step = _PROBE_STEP


def _common_prefix(a: bytes, i: int, b: bytes, j: int) -> int:
    """How many bytes are equal from a[i] and b[j] on."""
    limit = min(len(a) - i, len(b) - j)
    left, right = memoryview(a)[i : i + limit], memoryview(b)[j : j + limit]
    return _grow(limit, lambda start, end: left[start:end] == right[start:end])


def _common_suffix(a: bytes, a_from: int, i: int, b: bytes, b_from: int, j: int) -> int:
    """How many bytes are equal before a[i] and b[j], not going below the two bounds."""
    limit = min(i - a_from, j - b_from)
    left, right = memoryview(a)[i - limit : i], memoryview(b)[j - limit : j]
    return _grow(
        limit,
        lambda start, end: left[limit - end : limit - start] == right[limit - end : limit - start],
    )


def _grow(limit: int, equal: Callable[[int, int], bool]) -> int:
    """The length of an equal stretch: ever larger steps, then ever smaller ones."""
    known, step = 0, 64
    while known < limit and step:
        end = min(known + step, limit)
        if equal(known, end):
            known, step = end, step * 2
        else:
            step, limit = (end - known) // 2, end
    return known
