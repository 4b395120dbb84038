"""A thread's records as those of another thread.

Values are copied as they are stored: what a patch was made against is named by versions and
checkpoints of the thread, which the copy has too. Only what is in an object of the thread's own
is put into the copy's records; a compaction takes it out again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from logstore.errors import MissingDataError
from logstore.lanes import MAX_SEGMENT_BYTES
from logstore.reader import ThreadRead
from logstore.records import (
    PENDING_ARRIVAL,
    Encoding,
    Kind,
    Record,
    Tombstone,
    ValueRef,
    arrival_of,
    distinct,
    without_superseded,
)
from logstore.store import LogStore
from logstore.tail import StartAgain


class ThreadCopy:
    """The parts in which a thread is written to its copy, in order."""

    def __init__(self, store: LogStore, read: ThreadRead, target: str) -> None:
        """Copy what a complete read found."""
        self._store = store
        self._read = read
        self._target = target

    def parts(self) -> Iterator[list[Record]]:
        """Records to be stored part by part, each after the one before it is durable.

        What a tombstone hides comes in the same parts as the tombstone; what it had not seen
        comes later.
        """
        for tombstone, records in self._groups():
            for chunk in _chunks(records) or [[]]:
                part = [self._moved(record) for record in self._with_values(chunk)]
                if tombstone is not None:
                    part.append(self._moved(tombstone))
                if part:
                    yield part

    def _groups(self) -> Iterator[tuple[Record | None, list[Record]]]:
        view = self._read.view
        left = sorted(self._records(), key=arrival_of)
        hiding = [t for t in view.tombstones if not Tombstone.from_record(t).is_whole]
        for tombstone in sorted(without_superseded(hiding), key=arrival_of):
            own = Tombstone.from_record(tombstone)
            yield _own(tombstone, own), [r for r in left if own.sees(r)]
            left = [r for r in left if not own.sees(r)]
        yield None, left

    def _records(self) -> list[Record]:
        """All that was not deleted; not what was put onto something deleted."""
        view = self._read.view
        found: list[Record] = []
        for record in distinct(view.records):
            if record.kind == Kind.CHECKPOINT:
                known = view.ancestor(record.checkpoint_ns, record.checkpoint_id)
                if known is None:
                    continue
                if self._needs_no_parent(record):
                    record = record._replace(parent_checkpoint_id=None)
            if record.kind in (Kind.CHECKPOINT, Kind.BLOB, Kind.WRITE):
                found.append(record)
        return found

    def _needs_no_parent(self, checkpoint: Record) -> bool:
        """Whether a checkpoint names a parent that there is not, and has all of its values.

        Another one whose parent is missing cannot be rebuilt, here or in the copy.
        """
        view = self._read.view
        if view.ancestor(checkpoint.checkpoint_ns, checkpoint.parent_checkpoint_id or ""):
            return False
        versions = view.versions(checkpoint)
        return all(view.stored_value(checkpoint, channel) is not None for channel in versions)

    def _with_values(self, records: Sequence[Record]) -> list[Record]:
        outside = [r for r in records if r.encoding == Encoding.OBJECT]
        refs = [r.value for r in records if isinstance(r.value, ValueRef)]
        try:
            values = self._store.runs.values(self._read.runs, refs)
            typed = self._store.reader.decoder(self._read).load(outside)
        except StartAgain as error:
            raise MissingDataError(
                f"the copy of thread {self._read.view.thread_id!r} took longer than compaction "
                f"keeps replaced runs; delete thread {self._target!r} and copy again"
            ) from error
        brought = {
            id(record): record._replace(encoding=Encoding.RAW, base_version=None, value=data)
            for record, (_, data) in zip(outside, typed, strict=True)
        }
        return [
            brought.get(id(r))
            or (r._replace(value=values[r.value]) if isinstance(r.value, ValueRef) else r)
            for r in records
        ]

    def _moved(self, record: Record) -> Record:
        return record._replace(
            thread_id=self._target, stamp=self._store.stamp(), arrived=PENDING_ARRIVAL
        )


def _own(tombstone: Record, stated: Tombstone) -> Record:
    """The tombstone for the copy: it sees all that its own writer has stored so far."""
    name = stated.own or f"{tombstone.stamp:x}-{tombstone.writer}"
    return tombstone._replace(cover=stated._replace(positions={}, own=name).to_json(), value=None)


def _chunks(records: Sequence[Record]) -> list[list[Record]]:
    chunks: list[list[Record]] = []
    size = MAX_SEGMENT_BYTES + 1
    for record in records:
        if size > MAX_SEGMENT_BYTES:
            chunks.append([])
            size = 0
        chunks[-1].append(record)
        size += 200 + (record.size or 0 if record.encoding != Encoding.PATCH else 0)
    return chunks
