"""Which writes are in a patch's dictionary, and finding them and its base again.

The `dictionary` column names writes of the record's channel by two bytes each, the low bytes
of their checksums, going back from the parent of the record's checkpoint: for each ancestor a
byte with the number of its writes, then these, in their order. An ancestor more costs a byte.
The checksum of the decoded value tells whether the right ones were found.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, product

from logstore.errors import ParentCycleError
from logstore.records import Encoding, Kind, Record
from logstore.view import NeedsHistory, ThreadView

MAX_NAMED_WRITES = 255
_MAX_AMBIGUITY = 64
_WITH_VALUE = (Encoding.RAW, Encoding.PATCH, Encoding.OBJECT)


def name_of(checksum: int) -> bytes:
    """A write's name in a dictionary."""
    return (checksum & 0xFFFF).to_bytes(2, "little")


def name_writes(steps: Sequence[Sequence[int]]) -> bytes | None:
    """The column for writes given by their checksums, nearest ancestor first.

    Returns:
        The column, or None if an ancestor has too many writes to be named.
    """
    if any(len(step) > MAX_NAMED_WRITES for step in steps):
        return None
    return b"".join(bytes([len(step)]) + b"".join(map(name_of, step)) for step in steps)


def _named(column: bytes) -> Iterator[list[bytes]]:
    """For each ancestor, going back, the names of its writes."""
    at = 0
    while at < len(column):
        count = column[at]
        names = column[at + 1 : at + 1 + 2 * count]
        yield [names[i : i + 2] for i in range(0, len(names), 2)]
        at += 1 + 2 * count


class Dictionaries:
    """Finds the records that patches of one thread were made against."""

    def __init__(self, view: ThreadView) -> None:
        """Look in a view's records, losers of clashes included."""
        self._view = view
        self._indexed = 0
        self._values: dict[tuple[str, str, str, str], list[Record]] = defaultdict(list)
        self._writes: dict[tuple[str, str, str], list[Record]] = defaultdict(list)

    def _update(self) -> None:
        """Index the view's records; snapshots may have been added since the last call."""
        records = self._view.records
        for r in islice(records, self._indexed, None):
            ns, channel = r.checkpoint_ns, r.channel or ""
            if r.kind == Kind.WRITE:
                self._writes[(ns, r.checkpoint_id, channel)].append(r)
            elif r.kind == Kind.BLOB and r.version is not None and r.encoding != Encoding.EMPTY:
                self._values[(r.kind, ns, channel, r.version)].append(r)
            elif r.kind == Kind.SNAPSHOT and r.encoding in _WITH_VALUE:
                self._values[(r.kind, ns, channel, r.checkpoint_id)].append(r)
        self._indexed = len(records)

    def choices(self, record: Record) -> list[tuple[Record | None, tuple[Record, ...]]]:
        """The bases and writes that a patch may have been made against, likeliest first.

        More than one only if two records share a key, or two writes a name.

        Raises:
            NeedsHistory: a head view does not hold them.
        """
        self._update()
        bases = self._bases(record)
        writes = self._write_choices(record)
        if not bases or not writes:
            if not self._view.complete:
                raise NeedsHistory
            return []
        return list(product(bases, writes))[:_MAX_AMBIGUITY]

    def _bases(self, record: Record) -> Sequence[Record | None]:
        if record.base_version is None:
            return [None]
        channel = record.base_channel or record.channel or ""
        kind = Kind.SNAPSHOT if record.kind == Kind.SNAPSHOT else Kind.BLOB
        key = (kind, record.checkpoint_ns, channel, record.base_version)
        found = self._values.get(key, ())
        # Of snapshots a replaced one may be the base, but most often it is the newest.
        return _distinct(sorted(found, key=lambda r: -r.seq) if kind == Kind.SNAPSHOT else found)

    def _write_choices(self, record: Record) -> list[tuple[Record, ...]]:
        if not record.dictionary:
            return [()]
        slots: list[list[Record]] = []
        ancestors = self._ancestors(record)
        for names in _named(record.dictionary):
            checkpoint_id = next(ancestors, None)
            key = (record.checkpoint_ns, checkpoint_id or "", record.channel or "")
            at_hand = _distinct(self._writes.get(key, ()))
            slots = [
                *([w for w in at_hand if name_of(w.checksum or 0) == name] for name in names),
                *slots,
            ]
        if not all(slots):
            return []
        return list(islice(product(*slots), _MAX_AMBIGUITY))

    def _ancestors(self, record: Record) -> Iterator[str]:
        seen = {record.checkpoint_id}
        current = self._view.ancestor(record.checkpoint_ns, record.checkpoint_id)
        while current is not None and (parent := current.parent_checkpoint_id) is not None:
            if parent in seen:
                raise ParentCycleError(f"the parents of checkpoint {parent} run in a circle")
            seen.add(parent)
            yield parent
            current = self._view.ancestor(record.checkpoint_ns, parent)


def _distinct(records: Iterable[Record]) -> list[Record]:
    """One record for each content."""
    found: dict[int | None, Record] = {}
    for record in records:
        found.setdefault(record.checksum, record)
    return list(found.values())
