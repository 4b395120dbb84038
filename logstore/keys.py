"""Names to object keys and back, and the Bloom filter that a segment's key carries.

All keys use one alphabet, lower-case letters, digits and ``._=-`` (segment filters add
upper-case letters), with components of at most 255 bytes, so that file systems, S3 and
what imitates it hold them alike. A user's name becomes a component that is unique and of
bounded length; the true name is inside the object.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b

from logstore.errors import CorruptObjectError, InvalidNameError

STORE_JSON = "store.json"
LOG = "log"
RUNS = "runs"
MANIFESTS = "manifests"
COPIES = "copies"
SNAPSHOTS = "snapshots"
VALUES = "values"
TABLES = "tables"
TABLE_INDEX = "threads"
"""The index of kept tables, named as one of them."""

MAX_NAME_BYTES = 8192
_PLAIN = re.compile(r"[a-z0-9_]{1,64}")
_UNSAFE = re.compile(r"[^a-z0-9_]+")

_FILTER_MAX_BYTES = 96
_FILTER_BYTES_A_NAME = 1.5
_FILTER_HASHES = 7


def check_name(what: str, name: str) -> str:
    """Give the name back if it can be stored.

    Raises:
        InvalidNameError: it is too long or holds a lone surrogate.
    """
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise InvalidNameError(
            f"{what} {name[:40]!r} holds a lone surrogate, which is no Unicode text; "
            "decode it properly before it is used as a name"
        ) from None
    if size > MAX_NAME_BYTES:
        raise InvalidNameError(
            f"{what} {name[:40]!r}… has {size} bytes; at most {MAX_NAME_BYTES} can be stored. "
            "Use a shorter id, for example a hash of this one"
        )
    return name


def encode_name(name: str) -> str:
    """A key component for a user's name: plain names stay readable, all are unique.

    ``p.`` marks a plain name, ``h.`` a readable hint and a 160-bit hash.
    """
    if _PLAIN.fullmatch(name):
        return f"p.{name}"
    hint = _UNSAFE.sub("_", name.lower())[:32]
    digest = blake2b(name.encode(), digest_size=20).hexdigest()
    return f"h.{hint}.{digest}"


def name_hash(name: str) -> int:
    """A hash of a user's name, 63 bits."""
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "big") >> 1


def partition_of(thread_id: str, partitions: int) -> int:
    """The partition that holds all records of a thread."""
    digest = blake2b(thread_id.encode(), digest_size=8, person=b"partition").digest()
    return int.from_bytes(digest, "big") % partitions


def _partition(partition: int) -> str:
    return f"partition={partition:04d}"


def log_prefix(partition: int) -> str:
    """Where a partition's segments are."""
    return f"{LOG}/{_partition(partition)}/"


def run_prefix(partition: int) -> str:
    """Where a partition's runs are."""
    return f"{RUNS}/{_partition(partition)}/"


def run_key(partition: int, level: int, run_id: str) -> str:
    """The key of a run."""
    return f"{run_prefix(partition)}{level}-{run_id}.parquet"


def run_level(key: str) -> int:
    """The level of a run, from its key.

    Raises:
        CorruptObjectError: the key is not a run's.
    """
    match = _RUN.fullmatch(key)
    if match is None:
        raise CorruptObjectError(
            f"{key} lies among the runs but its name is not a run's "
            "(runs/partition=NNNN/<level>-<id>.parquet); move foreign objects out of the store's "
            "prefix"
        )
    return int(match["level"])


def tables_prefix(partition: int) -> str:
    """Where the files of a partition's kept tables are."""
    return f"{TABLES}/{_partition(partition)}/"


def table_key(partition: int, name: str, file_id: str) -> str:
    """The key of a file of a kept table."""
    return f"{tables_prefix(partition)}{name}-{file_id}.parquet"


def is_index_key(key: str) -> bool:
    """Whether a file of kept tables is an index, and so has no rows of a thread."""
    return key.rpartition("/")[2].startswith(f"{TABLE_INDEX}-")


def is_run_key(key: str) -> bool:
    """Whether an object is a run."""
    return key.startswith(f"{RUNS}/")


def partition_manifest_key(partition: int) -> str:
    """The key of a partition manifest."""
    return f"{MANIFESTS}/{_partition(partition)}"


def manifest_copy_key(partition: int) -> str:
    """The key of the copy of a partition manifest."""
    return f"{COPIES}/{_partition(partition)}"


def values_prefix(partition: int) -> str:
    """Where the large values of a partition's threads are."""
    return f"{VALUES}/{_partition(partition)}/"


def value_prefix(partition: int, thread_id: str) -> str:
    """Where a thread's large values are."""
    return f"{values_prefix(partition)}t.{encode_name(thread_id)}/"


def snapshots_prefix(partition: int) -> str:
    """Where the snapshot manifests and objects of a partition's threads are."""
    return f"{SNAPSHOTS}/{_partition(partition)}/"


def snapshot_prefix(partition: int, thread_id: str) -> str:
    """Where a thread's snapshot manifest and snapshot objects are."""
    return f"{snapshots_prefix(partition)}t.{encode_name(thread_id)}/"


def snapshot_manifest_key(partition: int, thread_id: str) -> str:
    """The key of a thread's snapshot manifest."""
    return f"{snapshot_prefix(partition, thread_id)}manifest"


def snapshot_object_key(
    partition: int, thread_id: str, ns: str, channel: str, checkpoint_id: str, object_id: str
) -> str:
    """The key of a snapshot's value that is too large for the manifest."""
    place = _place_of(ns, channel, checkpoint_id)
    return f"{snapshot_prefix(partition, thread_id)}{place}-{object_id}"


def value_object_key(
    partition: int, thread_id: str, ns: str, channel: str, checkpoint_id: str, object_id: str
) -> str:
    """The key of a record's value that is too large for a row."""
    place = _place_of(ns, channel, checkpoint_id)
    return f"{value_prefix(partition, thread_id)}{place}-{object_id}"


def _place_of(ns: str, channel: str, checkpoint_id: str) -> str:
    return f"n.{encode_name(ns)}/c.{encode_name(channel)}/{encode_name(checkpoint_id)}"


def is_value_key(key: str) -> bool:
    """Whether an object holds a record's large value."""
    return key.startswith(f"{VALUES}/")


def manifest_beside(key: str) -> str:
    """The key of the snapshot manifest of the thread to which an object with a value belongs."""
    _, partition, thread = key.split("/")[:3]
    return f"{SNAPSHOTS}/{partition}/{thread}/manifest"


def build_filter(names: Iterable[str]) -> str:
    """A Bloom filter of names as base64url text, at most 128 characters.

    The filter has 12 bits a name up to 64 names, and 768 bits from there on. A name sets
    seven bits, at ``h1 + i * h2`` modulo the size, with h1 and h2 the halves of the name's
    BLAKE2b digest of 16 bytes (Kirsch and Mitzenmacher, "Less hashing, same performance").
    """
    distinct = set(names)
    size = min(_FILTER_MAX_BYTES, max(3, int(len(distinct) * _FILTER_BYTES_A_NAME)))
    size += -size % 3
    bits = bytearray(size)
    for name in distinct:
        for bit in _filter_bits(name, size):
            bits[bit >> 3] |= 1 << (bit & 7)
    return base64.urlsafe_b64encode(bits).decode()


def _filter_bits(name: str, size: int) -> list[int]:
    digest = blake2b(name.encode(), digest_size=16, person=b"bloom").digest()
    h1 = int.from_bytes(digest[:8], "little")
    h2 = int.from_bytes(digest[8:], "little") | 1
    return [(h1 + i * h2) % (size * 8) for i in range(_FILTER_HASHES)]


def filter_matches(text: str, name: str) -> bool:
    """Whether the filter may hold the name; never False for one that it holds."""
    bits = base64.urlsafe_b64decode(text)
    return all(bits[bit >> 3] >> (bit & 7) & 1 for bit in _filter_bits(name, len(bits)))


@dataclass(frozen=True, slots=True)
class SegmentName:
    """What a segment's key tells."""

    partition: int
    stamp: int
    """The stamp at which the writer sealed it."""
    writer: str
    seq: int
    """Its position in the writer's lane."""
    filter: str
    """The Bloom filter of the thread ids in it."""

    @property
    def key(self) -> str:
        """The object key."""
        name = f"{self.stamp:016x}-{self.writer}-{self.seq:08x}-{self.filter}"
        return f"{log_prefix(self.partition)}{name}.parquet"

    @classmethod
    def parse(cls, key: str) -> SegmentName:
        """Read a segment's key.

        Raises:
            CorruptObjectError: the key is not a segment's.
        """
        match = _SEGMENT.fullmatch(key)
        if match is None or len(match["filter"]) % 4:
            raise CorruptObjectError(
                f"{key} lies in the log but its name is not a segment's "
                "(log/partition=NNNN/<stamp>-<writer>-<seq>-<filter>.parquet); "
                "move foreign objects out of the store's prefix"
            )
        return cls(
            int(match["partition"]),
            int(match["stamp"], 16),
            match["writer"],
            int(match["seq"], 16),
            match["filter"],
        )

    def may_hold(self, thread_id: str) -> bool:
        """Whether the segment may hold records of the thread."""
        return filter_matches(self.filter, thread_id)


_RUN = re.compile(r"runs/partition=\d{4}/(?P<level>\d+)-[0-9a-f]+\.parquet")
_SEGMENT = re.compile(
    r"log/partition=(?P<partition>\d{4})/"
    r"(?P<stamp>[0-9a-f]{16})-(?P<writer>[0-9a-f]{8,40})-(?P<seq>[0-9a-f]{8})-"
    r"(?P<filter>[A-Za-z0-9_-]+={0,2})\.parquet"
)
