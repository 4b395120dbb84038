"""The two kinds of manifest, the only objects that ever change, and their encoding.

A manifest is replaced by compare-and-swap only and never deleted. Each version carries a
generation that only grows and the id of the job that wrote it, so that no two versions
have equal bytes, and a content-based ETag cannot repeat.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import blake2b
from typing import Any, NamedTuple

import msgpack
import zstandard

from logstore.errors import CorruptObjectError, FormatVersionError
from logstore.records import FORMAT_VERSION, Encoding, Record
from logstore.view import HeadScope

_MAGIC = b"LSM"
_DIGEST_BYTES = 16
_HEADER_BYTES = len(_MAGIC) + 1 + _DIGEST_BYTES
_MAX_DECODED_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class NamespaceHead:
    """What a snapshot manifest knows of one namespace."""

    checkpoint_id: str
    """The head: the visible checkpoint with the greatest id."""
    channels: Mapping[str, str | None]
    """For each delta channel: the checkpoint at which its latest snapshot or value lies, so
    that its writes from there to the head are in the manifest; None for all from the root."""
    newest: str = ""
    """The greatest checkpoint id that was merged, if that is a hidden one."""


@dataclass(frozen=True)
class SnapshotManifest:
    """All that a head read of a thread needs, up to the last compaction."""

    thread_id: str
    generation: int = 0
    job: str = ""
    merged: Mapping[str, float] = field(default_factory=dict)
    """The keys of the segments whose records of the thread are in here, in the snapshot, or
    hidden, and when the store first heard so (seconds since the epoch)."""
    positions: Mapping[str, int] = field(default_factory=dict)
    """For each writer: the greatest lane position with records of the thread. What a delete
    has seen, and hides."""
    heads: Mapping[str, NamespaceHead] = field(default_factory=dict)
    evicted: frozenset[int] = frozenset()
    """The hashes of the namespaces that were left out because there are too many, or because
    all their checkpoints are hidden."""
    records: tuple[Record, ...] = ()
    retired: Mapping[str, float] = field(default_factory=dict)
    """The keys of snapshot objects that no longer count, and since when."""

    @cached_property
    def scope(self) -> HeadScope:
        """What a view of these records may answer."""
        parents = {
            (r.checkpoint_ns, r.checkpoint_id): r.parent_checkpoint_id
            for r in self.records
            if r.kind == "checkpoint"
        }
        since: dict[tuple[str, str], frozenset[str]] = {}
        for ns, head in self.heads.items():
            for channel, seed in head.channels.items():
                path: list[str] = []
                current: str | None = head.checkpoint_id
                while current is not None and (ns, current) in parents:
                    path.append(current)
                    current = None if current == seed else parents[(ns, current)]
                since[(ns, channel)] = frozenset(path)
        heads = {ns: head.checkpoint_id for ns, head in self.heads.items()}
        tombstones = {(r.stamp, r.writer) for r in self.records if r.kind == "tombstone"}
        newest = {ns: max(head.newest, head.checkpoint_id) for ns, head in self.heads.items()}
        return HeadScope(
            since, parents, newest, heads, self.evicted, tombstones=frozenset(tombstones)
        )

    @property
    def object_keys(self) -> list[str]:
        """The keys of the snapshot objects that the records refer to."""
        return [
            r.base_version
            for r in self.records
            if r.encoding == Encoding.OBJECT and r.base_version is not None
        ]

    def encode(self) -> bytes:
        """The manifest's body."""
        return _frame(
            {
                "thread_id": self.thread_id,
                "generation": self.generation,
                "job": self.job,
                "merged": dict(self.merged),
                "positions": dict(self.positions),
                "heads": {
                    ns: [h.checkpoint_id, dict(h.channels), h.newest]
                    for ns, h in self.heads.items()
                },
                "evicted": sorted(self.evicted),
                "fields": list(Record._fields),
                "records": [list(r) for r in self.records],
                "retired": dict(self.retired),
            }
        )

    @classmethod
    def decode(cls, key: str, data: bytes) -> SnapshotManifest:
        """Read a manifest's body.

        Raises:
            CorruptObjectError, FormatVersionError
        """
        doc = _unframe(key, data)
        fields = doc["fields"]
        rows = doc["records"]
        if fields == list(Record._fields):
            records = tuple(Record(*row) for row in rows)
        else:
            known = set(Record._fields)
            records = tuple(
                Record(**{n: v for n, v in zip(fields, row, strict=True) if n in known})
                for row in rows
            )
        return cls(
            thread_id=doc["thread_id"],
            generation=doc["generation"],
            job=doc["job"],
            merged=doc["merged"],
            positions=doc["positions"],
            heads={ns: NamespaceHead(*head) for ns, head in doc["heads"].items()},
            evicted=frozenset(doc["evicted"]),
            records=records,
            retired=doc["retired"],
        )


@dataclass(frozen=True, slots=True)
class RunEntry:
    """A run as its partition manifest lists it."""

    key: str
    level: int
    rows: int
    size: int
    """Bytes of the object."""
    first_thread: str
    last_thread: str
    generation: int
    """The generation of the partition manifest that first listed it."""
    sequence: str = ""
    """Names the sorted sequence that it was cut from, because a run has a greatest size."""
    part: int = 0
    """Its place in the sequence."""
    objects: int = 0
    """How many of its rows name an object that holds their value."""

    def may_hold(self, thread_id: str) -> bool:
        """Whether the thread lies within the run's bounds."""
        return self.first_thread <= thread_id <= self.last_thread


KEPT = ("messages", "tool_calls")
"""The tables that can be kept: as of the head, of its branch."""


@dataclass(frozen=True, slots=True)
class KeptBatch:
    """What one commit put into the kept tables."""

    level: int
    generation: int
    """The generation of the partition manifest that first listed it."""
    files: Mapping[str, tuple[RunEntry, ...]]
    """Sorted files by table. Those of `threads` are the index: which threads the batch tells
    of, and in which of the tables it has all of their rows."""


@dataclass(frozen=True, slots=True)
class KeptTables:
    """Tables that are made by reading threads, as the compactor keeps them."""

    tables: tuple[str, ...] = ()
    """Which of them, for the last job that kept any."""
    batches: tuple[KeptBatch, ...] = ()
    """The newest first: for each thread the first that tells of it counts. Together they tell
    of every thread of the runs."""
    stale: int = 0
    """How many threads at most wait for their rows to be made."""

    @property
    def files(self) -> dict[str, RunEntry]:
        """All files by key."""
        return {
            file.key: file
            for batch in self.batches
            for files in batch.files.values()
            for file in files
        }


class HiddenRows(NamedTuple):
    """A thread of a partition that has rows which are stored and not shown."""

    since: float | None
    """The store's time of the commit that noted it, or that last looked; None in that commit
    itself, which cannot know it."""
    reason: str = ""
    """Why they could not be dropped when a job looked."""


@dataclass(frozen=True)
class PartitionManifest:
    """A partition's live runs, and what waits for its deletion."""

    partition: int
    generation: int = 0
    job: str = ""
    runs: tuple[RunEntry, ...] = ()
    merged: Mapping[str, float | None] = field(default_factory=dict)
    """Segments that are merged and wait for their deletion, each with the store's time of
    the commit that merged it; None in that commit itself, which cannot know it."""
    retired: Mapping[str, float | None] = field(default_factory=dict)
    """Replaced runs and files of kept tables, likewise."""
    condemned: tuple[str, ...] = ()
    """Objects that nothing names, to be deleted: every job that began earlier has lost, and a later
    one names none of them."""
    hidden: Mapping[str, HiddenRows] = field(default_factory=dict)
    """The threads whose hidden rows wait to be dropped."""
    unfolded: Mapping[str, str] = field(default_factory=dict)
    """Channels that the last job could not fold, and why."""
    changed: Mapping[str, str] = field(default_factory=dict)
    """Channels in which the last job met snapshots of another reducer, and which."""
    swept: float = 0.0
    """When its snapshot objects were last compared with the manifests that name them: seconds
    since the epoch, the store's clock."""
    kept: KeptTables = KeptTables()
    """The tables that are kept, if any are."""
    totals: Mapping[str, int] = field(default_factory=dict)
    """Sums over all jobs: bytes read and written, segments merged, snapshots made."""

    def dated(self, modified: float) -> PartitionManifest:
        """The manifest with the open times filled in.

        Args:
            modified: when the store received this version: seconds since the epoch.
        """

        def fill(entries: Mapping[str, float | None]) -> dict[str, float | None]:
            return {k: modified if t is None else t for k, t in entries.items()}

        hidden = {
            thread_id: rows if rows.since is not None else rows._replace(since=modified)
            for thread_id, rows in self.hidden.items()
        }
        return replace(self, merged=fill(self.merged), retired=fill(self.retired), hidden=hidden)

    def encode(self) -> bytes:
        """The manifest's body."""
        return _frame(
            {
                "partition": self.partition,
                "generation": self.generation,
                "job": self.job,
                "runs": [_entry(run) for run in self.runs],
                "merged": dict(self.merged),
                "retired": dict(self.retired),
                "condemned": list(self.condemned),
                "hidden": {thread_id: list(rows) for thread_id, rows in self.hidden.items()},
                "unfolded": dict(self.unfolded),
                "changed": dict(self.changed),
                "swept": self.swept,
                "kept": _kept_doc(self.kept),
                "totals": dict(self.totals),
            }
        )

    @classmethod
    def decode(cls, key: str, data: bytes) -> PartitionManifest:
        """Read a manifest's body.

        Raises:
            CorruptObjectError, FormatVersionError
        """
        doc = _unframe(key, data)
        return cls(
            partition=doc["partition"],
            generation=doc["generation"],
            job=doc["job"],
            runs=tuple(RunEntry(**run) for run in doc["runs"]),
            merged=doc["merged"],
            retired=doc["retired"],
            condemned=tuple(doc["condemned"]),
            hidden={thread_id: HiddenRows(*rows) for thread_id, rows in doc["hidden"].items()},
            unfolded=doc["unfolded"],
            changed=doc.get("changed", {}),
            swept=doc.get("swept", 0.0),
            kept=_kept_of(doc.get("kept")),
            totals=doc["totals"],
        )


def _entry(run: RunEntry) -> dict[str, Any]:
    return {name: getattr(run, name) for name in RunEntry.__slots__}


def _kept_doc(kept: KeptTables) -> dict[str, Any] | None:
    if not kept.batches:
        return None
    batches = [
        {
            "level": batch.level,
            "generation": batch.generation,
            "files": {name: [_entry(f) for f in files] for name, files in batch.files.items()},
        }
        for batch in kept.batches
    ]
    return {"tables": list(kept.tables), "batches": batches, "stale": kept.stale}


def _kept_of(doc: Mapping[str, Any] | None) -> KeptTables:
    if doc is None:
        return KeptTables()
    batches = (
        KeptBatch(
            batch["level"],
            batch["generation"],
            {name: tuple(RunEntry(**f) for f in files) for name, files in batch["files"].items()},
        )
        for batch in doc["batches"]
    )
    return KeptTables(tuple(doc["tables"]), tuple(batches), doc["stale"])


def _frame(doc: Mapping[str, Any]) -> bytes:
    """Magic, format version, digest of the rest, then msgpack in zstd."""
    body = zstandard.ZstdCompressor(level=3).compress(msgpack.packb(doc))
    digest = blake2b(body, digest_size=_DIGEST_BYTES).digest()
    return _MAGIC + bytes([FORMAT_VERSION]) + digest + body


def _unframe(key: str, data: bytes) -> dict[str, Any]:
    if len(data) <= _HEADER_BYTES or data[: len(_MAGIC)] != _MAGIC:
        raise CorruptObjectError(
            f"{key} is not a manifest of logstore, or is truncated ({len(data)} bytes). "
            "Restore the object from a version or copy of the bucket, or run `compactor rebuild`"
        )
    if data[len(_MAGIC)] > FORMAT_VERSION:
        raise FormatVersionError(
            f"{key} has format version {data[len(_MAGIC)]}, this logstore reads up to "
            f"{FORMAT_VERSION}; upgrade langgraph-checkpoint-logstore"
        )
    body = data[_HEADER_BYTES:]
    if blake2b(body, digest_size=_DIGEST_BYTES).digest() != data[len(_MAGIC) + 1 : _HEADER_BYTES]:
        raise CorruptObjectError(
            f"manifest {key} fails its checksum; it is truncated or damaged. "
            "Restore the object from a version or copy of the bucket, or run `compactor rebuild`"
        )
    raw = zstandard.ZstdDecompressor().decompress(body, max_output_size=_MAX_DECODED_BYTES)
    doc: dict[str, Any] = msgpack.unpackb(raw, strict_map_key=False)
    return doc
