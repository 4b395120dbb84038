"""Records: the immutable facts of the log, their keys and the rules of merging them.

The log of records is the truth; manifests, runs and snapshots are derived from it.
Merging is a set union: associative, commutative and idempotent. Of the records of one key
in a set exactly one wins, whatever the order in which they meet. Every protocol of the
store leans on that: a segment may be read twice, merged twice or arrive late, and nothing
changes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from enum import StrEnum
from hashlib import blake2b
from typing import NamedTuple

import pyarrow as pa

FORMAT_VERSION = 1
"""The version of the layout. A store of a newer version is refused."""

TASKS = "__pregel_tasks"
TASKS_FORMAT = 4
"""Checkpoints of an earlier format take their tasks from writes to `TASKS` at their parent."""

PENDING_ARRIVAL = 2**62
"""The arrival of a record that is not in the store yet: after all that is."""


class Kind(StrEnum):
    """What a record states."""

    CHECKPOINT = "checkpoint"
    BLOB = "blob"
    WRITE = "write"
    SNAPSHOT = "snapshot"
    TOMBSTONE = "tombstone"


WRITTEN = (Kind.CHECKPOINT, Kind.BLOB, Kind.WRITE)
"""What savers write of a graph's doings; everything else is derived or takes away."""


class Encoding(StrEnum):
    """How a record's value is stored."""

    RAW = "raw"
    """The serde's bytes as they are; the Parquet column compresses them."""
    PATCH = "patch"
    """A patch against a dictionary, see `base_version` and `dictionary`."""
    EMPTY = "empty"
    """There is no value: the channel had none at this version."""
    OBJECT = "object"
    """The value is an object of its own, whose key stands in `base_version`; or a patch against
    that object's value."""
    ELSEWHERE = "elsewhere"
    """The value exists in the runs and was left out of a manifest."""
    VOID = "void"
    """A snapshot that must not be used: a write below it was not folded into it."""


class ValueRef(NamedTuple):
    """Where a value lies that was not read with its record."""

    run_key: str
    row_group: int
    row: int
    """The row within the row group."""


class Record(NamedTuple):
    """One immutable fact. The fields are the columns of segments and runs."""

    thread_id: str
    checkpoint_ns: str
    checkpoint_id: str
    kind: str
    channel: str | None = None
    version: str | None = None
    """A channel's version, as `encode_version` writes it; None for a value that stays with
    its checkpoint."""
    task_id: str | None = None
    task_path: str | None = None
    idx: int | None = None
    parent_checkpoint_id: str | None = None
    type: str | None = None
    """The serde's tag of `value`."""
    encoding: str = Encoding.RAW
    base_channel: str | None = None
    """The channel of a patch's base, if it is another one than the record's."""
    base_version: str | None = None
    """What a patch was made against: for a blob or write the version of an earlier blob, for
    a snapshot the checkpoint of an earlier snapshot; None for writes alone. For an object its
    key."""
    dictionary: bytes | None = None
    """The writes in a patch's dictionary, see `logstore.dictionary`."""
    ordinal: int | None = None
    """The place of a blob or snapshot in its channel's chain of patches."""
    size: int | None = None
    """Bytes of the decoded value."""
    checksum: int | None = None
    """`checksum_of` the decoded value."""
    metadata_type: str | None = None
    metadata_value: bytes | None = None
    """A checkpoint's metadata as the serde wrote it."""
    metadata: str | None = None
    """The same as JSON, for analytics and for the compactor's counters."""
    versions: str | None = None
    """A checkpoint's channel versions: JSON, from channel to encoded version."""
    run_id: str | None = None
    source: str | None = None
    step: int | None = None
    ts: int | None = None
    """Microseconds since the epoch, by the writer's clock."""
    cover: str | None = None
    """What a snapshot folded, or what a tombstone hides (JSON)."""
    stamp: int = 0
    writer: str = ""
    seq: int = 0
    """The lane position of the segment that brought the record; for a snapshot the
    generation of the partition manifest that commits it."""
    arrived: int = PENDING_ARRIVAL
    """When the store received the record's segment: microseconds since the epoch."""
    value: bytes | ValueRef | None = None
    """Last, so that a run's other columns are one range."""


_TIMESTAMP = pa.timestamp("us", tz="UTC")

SCHEMA = pa.schema(
    [
        ("thread_id", pa.string()),
        ("checkpoint_ns", pa.string()),
        ("checkpoint_id", pa.string()),
        ("kind", pa.string()),
        ("channel", pa.string()),
        ("version", pa.string()),
        ("task_id", pa.string()),
        ("task_path", pa.string()),
        ("idx", pa.int32()),
        ("parent_checkpoint_id", pa.string()),
        ("type", pa.string()),
        ("encoding", pa.string()),
        ("base_channel", pa.string()),
        ("base_version", pa.string()),
        ("dictionary", pa.binary()),
        ("ordinal", pa.int64()),
        ("size", pa.int64()),
        ("checksum", pa.int64()),
        ("metadata_type", pa.string()),
        ("metadata_value", pa.binary()),
        ("metadata", pa.string()),
        ("versions", pa.string()),
        ("run_id", pa.string()),
        ("source", pa.string()),
        ("step", pa.int64()),
        ("ts", _TIMESTAMP),
        ("cover", pa.string()),
        ("stamp", pa.int64()),
        ("writer", pa.string()),
        ("seq", pa.int64()),
        ("arrived", _TIMESTAMP),
        ("value", pa.large_binary()),
    ]
)
"""The Arrow schema of runs. A segment has the same without `arrived`, which only the
store can tell."""

assert tuple(SCHEMA.names) == Record._fields

_RECORD_BYTES = 1200
"""A record's fields and its short strings, in memory."""

Key = tuple[str | int | None, ...]


def key_of(record: Record) -> Key:
    """The record's identity: two records of one key are one fact, and one of them wins."""
    head = (record.kind, record.thread_id, record.checkpoint_ns)
    match record.kind:
        case Kind.CHECKPOINT:
            return (*head, record.checkpoint_id)
        case Kind.BLOB if record.version is not None:
            return (*head, record.channel, record.version)
        case Kind.BLOB:
            return (*head, record.channel, None, record.checkpoint_id)
        case Kind.WRITE:
            return (*head, record.checkpoint_id, record.task_id, record.idx)
        case Kind.SNAPSHOT:
            return (*head, record.checkpoint_id, record.channel)
        case _:
            return (*head, record.stamp, record.writer)


def arrival_of(record: Record) -> tuple[int, int, str]:
    """The order in which records arrived at the store; no writer's clock comes first."""
    return (record.arrived, record.stamp, record.writer)


def first_wins(record: Record) -> bool:
    """Whether of two records of this key the first to arrive stays."""
    return record.kind == Kind.WRITE and (record.idx or 0) >= 0


def winner(a: Record, b: Record) -> Record:
    """Of two records of one key, the one that counts.

    An ordinary write stays as it first arrived. A snapshot is decided by the generation
    that committed it, because each job has read all that earlier generations committed.
    Everything else is replaced by what arrives last.
    """
    if a.kind == Kind.SNAPSHOT:
        return max(a, b, key=_snapshot_order)
    if first_wins(a):
        return min(a, b, key=arrival_of)
    return max(a, b, key=arrival_of)


def _snapshot_order(record: Record) -> tuple[int, bool, int, str]:
    # A snapshot whose value is at hand comes before the same one without it.
    at_hand = record.encoding != Encoding.ELSEWHERE
    return (record.seq, at_hand, record.stamp, record.writer)


RowName = tuple[int, str, Key]


def name_of_row(record: Record) -> RowName:
    """Stamp, writer and key: what names a record, wherever it is met."""
    return (record.stamp, record.writer, key_of(record))


def distinct(records: Iterable[Record]) -> list[Record]:
    """Each record once, with its first arrival.

    A copy of a segment may land long after the segment was merged and deleted; what it holds
    has arrived when it first did. Writer and stamp name a record.
    """
    found: dict[RowName, Record] = {}
    for record in records:
        name = name_of_row(record)
        other = found.get(name)
        if other is None or _earlier(record, other):
            found[name] = record
    return list(found.values())


def _earlier(a: Record, b: Record) -> bool:
    at_hand = a.encoding != Encoding.ELSEWHERE, b.encoding != Encoding.ELSEWHERE
    return at_hand == (True, False) or (at_hand[0] == at_hand[1] and a.arrived < b.arrived)


def merge(records: Iterable[Record]) -> dict[Key, Record]:
    """Merge records into one winner a key."""
    given = list(records)
    merged = {key_of(record): record for record in given}
    if len(merged) == len(given):
        return merged
    merged.clear()
    for record in distinct(given):
        key = key_of(record)
        other = merged.get(key)
        merged[key] = record if other is None else winner(other, record)
    return merged


def weight(record: Record) -> int:
    """A record's bytes in memory, about."""
    value = record.value if isinstance(record.value, bytes) else b""
    texts = (record.metadata_value, record.metadata, record.versions, record.cover)
    return _RECORD_BYTES + len(value) + sum(len(text) for text in texts if text)


def encode_version(version: str | int | float) -> str:
    """A channel version as a string, so that no two different versions become equal.

    Strings stay as they are; numbers are marked with ``#`` and compare as Python's do
    (1 and 1.0 are one version).
    """
    if isinstance(version, str):
        return f"#s{version}" if version.startswith("#") else version
    if isinstance(version, float) and version.is_integer():
        version = int(version)
    return f"#{version!r}"


def checksum_of(type_: str | None, value: bytes) -> int:
    """The checksum of a decoded value and its type: BLAKE2b, 8 bytes, signed."""
    digest = blake2b(value, digest_size=8, person=(type_ or "").encode()[:16]).digest()
    return int.from_bytes(digest, "little", signed=True)


class Tombstone(NamedTuple):
    """What a tombstone takes away of what its writer had seen: for each writer of records, all
    up to a lane position.

    A tombstone of the *whole* thread deletes: none of it counts for anything any more. Every
    other one *hides* checkpoints: they are not shown, and their descendants are still rebuilt
    from them.
    """

    positions: Mapping[str, int]
    keep: Mapping[str, str] | None = None
    """A prune: for each namespace the least checkpoint id that stays. All others are hidden,
    and so is a namespace that is not named."""
    runs: frozenset[str] | None = None
    """The runs whose checkpoints, and whose writes at other checkpoints, are hidden."""
    checkpoints: frozenset[tuple[str, str]] | None = None
    """Single hidden checkpoints: namespace and id."""
    own: str | None = None
    """In the copy of a thread: names the tombstone that this is a copy of. It has also seen all
    that its own writer had stored up to its own segment, that one included. Several of one name
    are parts of one tombstone, see `joined`."""

    @property
    def is_whole(self) -> bool:
        """Whether it deletes the thread."""
        return self.keep is None and self.runs is None and self.checkpoints is None

    def sees(self, record: Record) -> bool:
        """Whether its writer had seen the record."""
        return record.seq <= self.positions.get(record.writer, -1)

    def deletes(self, record: Record) -> bool:
        """Whether the record counts for nothing any more."""
        if record.kind in (Kind.TOMBSTONE, Kind.SNAPSHOT):
            return False
        return self.is_whole and self.sees(record)

    def hides(self, record: Record) -> bool:
        """Whether a checkpoint, or a write at a checkpoint, is not shown."""
        if not self.sees(record):
            return False
        if self.runs is not None and record.run_id in self.runs:
            return True
        if record.kind != Kind.CHECKPOINT:
            return False
        place = (record.checkpoint_ns, record.checkpoint_id)
        if self.checkpoints is not None and place in self.checkpoints:
            return True
        least = "" if self.keep is None else self.keep.get(record.checkpoint_ns)
        return least is None or record.checkpoint_id < least

    def hides_all_of(self, other: Tombstone) -> bool:
        """Whether it hides each checkpoint that another one hides, of those that both have seen."""
        mine, singles = self.keep, self.checkpoints or frozenset()
        if mine is None:
            return False
        if any(
            ns in mine and id_ >= mine[ns] and (ns, id_) not in singles
            for ns, id_ in other.checkpoints or ()
        ):
            return False
        return other.keep is None or all(
            ns in other.keep and least >= other.keep[ns] for ns, least in mine.items()
        )

    def to_json(self) -> str:
        """The tombstone's `cover` column."""
        doc: dict[str, object] = {"positions": dict(self.positions)}
        if self.keep is not None:
            doc["keep"] = dict(self.keep)
        if self.runs is not None:
            doc["runs"] = sorted(self.runs)
        if self.checkpoints is not None:
            doc["checkpoints"] = sorted(self.checkpoints)
        if self.own is not None:
            doc["own"] = self.own
        return json.dumps(doc, separators=(",", ":"), sort_keys=True)

    @classmethod
    def from_record(cls, record: Record) -> Tombstone:
        """What a record of this kind states."""
        own = cls.from_json(record.cover or "{}")
        if own.own is not None:
            return own._replace(positions={**own.positions, record.writer: record.seq})
        return own

    @classmethod
    def from_json(cls, cover: str) -> Tombstone:
        """Read a tombstone's `cover` column."""
        doc = json.loads(cover)
        return cls(
            doc.get("positions", {}),
            doc.get("keep"),
            frozenset(doc["runs"]) if "runs" in doc else None,
            frozenset((ns, id_) for ns, id_ in doc["checkpoints"])
            if "checkpoints" in doc
            else None,
            doc.get("own"),
        )


def united(*known: Mapping[str, int]) -> dict[str, int]:
    """For each writer the greatest of some lane positions."""
    positions: dict[str, int] = {}
    for one in known:
        for writer, position in one.items():
            positions[writer] = max(position, positions.get(writer, -1))
    return positions


def tombstone_record(thread_id: str, tombstone: Tombstone, stamp: int) -> Record:
    """The record that states a tombstone; it belongs to no checkpoint."""
    return Record(thread_id, "", "", Kind.TOMBSTONE, cover=tombstone.to_json(), stamp=stamp)


def joined(tombstones: Iterable[Tombstone]) -> list[Tombstone]:
    """Tombstones, with the parts of each copied one as one that has seen all its parts saw."""
    found: list[Tombstone] = []
    parts: dict[str, Tombstone] = {}
    for tombstone in tombstones:
        if tombstone.own is None:
            found.append(tombstone)
            continue
        seen = parts[tombstone.own].positions if tombstone.own in parts else {}
        parts[tombstone.own] = tombstone._replace(positions=united(seen, tombstone.positions))
    return [*found, *parts.values()]


def without_superseded(tombstones: Iterable[Record]) -> list[Record]:
    """The tombstones without those that hide nothing which a later prune does not hide.

    What they hide may have been dropped, and a copy of it may still arrive: that nothing of it
    is stored is no reason. Hidden writes are only in the tombstone that names their run.
    """
    read = [(record, Tombstone.from_record(record)) for record in tombstones]
    prunes = [own for _, own in read if own.keep is not None]
    return [
        record
        for record, own in read
        if own.is_whole
        or own.runs is not None
        or not any(
            other is not own and other.sees(record) and other.hides_all_of(own) for other in prunes
        )
    ]
