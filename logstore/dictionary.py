"""Which writes are in a patch's dictionary, and finding them and its base again.

The `dictionary` column names writes of the record's channel by two bytes each, the low bytes
of their checksums, going back from the parent of the record's checkpoint: for each ancestor a
byte with the number of its writes, then these, in their order. An ancestor more costs a byte.
The checksum of the decoded value tells whether the right ones were found.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice, permutations, product
from typing import Self

from logstore.errors import ParentCycleError
from logstore.records import Encoding, Kind, Record
from logstore.view import CheckpointKey, NeedsHistory, ThreadView

MAX_NAMED_WRITES = 255
_MAX_AMBIGUITY = 4096
_WITH_VALUE = (Encoding.RAW, Encoding.PATCH, Encoding.OBJECT)


def name_of(checksum: int) -> bytes:
    """A write's name in a dictionary."""
    return (checksum & 0xFFFF).to_bytes(2, "little")


def name_writes(steps: Sequence[Sequence[int]]) -> bytes | None:
    """The column for writes given by their checksums, nearest ancestor first.

    Returns:
        The column, or None if an ancestor has too many writes to be named, or two that differ
        and would have one name.
    """
    if any(len(step) > MAX_NAMED_WRITES or _clashes(step) for step in steps):
        return None
    return b"".join(bytes([len(step)]) + b"".join(map(name_of, step)) for step in steps)


def _clashes(checksums: Sequence[int]) -> bool:
    distinct = set(checksums)
    return len(set(map(name_of, distinct))) < len(distinct)


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
        self._parents: dict[CheckpointKey, list[str | None]] = defaultdict(list)

    def _update(self) -> None:
        """Index the view's records; snapshots may have been added since the last call."""
        records = self._view.records
        for r in islice(records, self._indexed, None):
            ns, channel = r.checkpoint_ns, r.channel or ""
            if r.kind == Kind.CHECKPOINT:
                parents = self._parents[(ns, r.checkpoint_id)]
                if r.parent_checkpoint_id not in parents:
                    parents.append(r.parent_checkpoint_id)
            elif r.kind == Kind.WRITE:
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
        named = list(_named(record.dictionary))
        ways = (product(*reversed(steps)) for steps in self._ways_back(record, named))
        chosen = islice(chain.from_iterable(ways), _MAX_AMBIGUITY)
        return [tuple(chain.from_iterable(choice)) for choice in chosen]

    def _ways_back(
        self, record: Record, named: Sequence[Sequence[bytes]]
    ) -> Iterator[list[list[tuple[Record, ...]]]]:
        """For each way back through the ancestors: what the names may stand for at each.

        There is more than one way if an ancestor was put again below another parent.

        Raises:
            ParentCycleError: there is no way but one in a circle.
        """
        ns, channel = record.checkpoint_ns, record.channel or ""
        ways = [_WayBack(record.checkpoint_id, {record.checkpoint_id}, [])]
        circle, is_found = "", False
        while ways:
            way = ways.pop()
            if len(way.steps) == len(named):
                is_found = True
                yield way.steps
                continue
            parents = self._parents_of(ns, way.at)
            for parent in reversed(parents):
                if parent is not None and parent in way.seen:
                    circle = parent
                    continue
                writes = self._writes.get((ns, parent or "", channel), ())
                if found := _assigned(named[len(way.steps)], _distinct(writes)):
                    ways.append(way.gone_on(parent, found, alone=len(parents) == 1))
        if circle and not is_found:
            raise ParentCycleError(f"the parents of checkpoint {circle} run in a circle")

    def _parents_of(self, ns: str, checkpoint_id: str | None) -> list[str | None]:
        """The parents that a checkpoint was put below, the last one first; None for no more."""
        current = self._view.ancestor(ns, checkpoint_id or "")
        last = None if current is None else current.parent_checkpoint_id
        put = self._parents.get((ns, checkpoint_id or ""), ())
        return [last, *(parent for parent in put if parent != last)]


@dataclass(slots=True)
class _WayBack:
    """Part of a way through a checkpoint's ancestors."""

    at: str | None
    """Where it has come to; None beyond the first."""
    seen: set[str | None]
    steps: list[list[tuple[Record, ...]]]
    """What may have been meant at each ancestor."""

    def gone_on(self, parent: str | None, found: list[tuple[Record, ...]], alone: bool) -> Self:
        """The way with an ancestor more; `alone` if nothing else goes on from here."""
        way = self if alone else replace(self, seen=set(self.seen), steps=list(self.steps))
        way.at = parent
        way.seen.add(parent)
        way.steps.append(found)
        return way


def _assigned(names: Sequence[bytes], writes: Sequence[Record]) -> list[tuple[Record, ...]]:
    """Which of a checkpoint's writes the names may stand for, likeliest first.

    A name that stands twice for two writes was given to them in their order; or it stands for
    one content that was written twice.
    """
    wanted = Counter(names)
    found: dict[bytes, list[Record]] = {name: [] for name in wanted}
    for write in writes:
        if (name := name_of(write.checksum or 0)) in found:
            found[name].append(write)
    ways = [
        [dict(enumerate(way)) for way in _ways(found[name], times)]
        for name, times in wanted.items()
    ]
    assigned = []
    for combined in islice(product(*ways), _MAX_AMBIGUITY):
        of_name = dict(zip(wanted, combined, strict=True))
        met: Counter[bytes] = Counter()
        chosen = []
        for name in names:
            chosen.append(of_name[name][met[name]])
            met[name] += 1
        assigned.append(tuple(chosen))
    return assigned


def _ways(writes: Sequence[Record], times: int) -> Iterator[tuple[Record, ...]]:
    """Ways to fill so many places: with different writes in every order, then with repetitions."""
    if times == 1:
        yield from ((write,) for write in writes)
        return
    yield from islice(permutations(writes, times), _MAX_AMBIGUITY)
    yield from (way for way in product(writes, repeat=times) if len(set(map(id, way))) < times)


def _distinct(records: Iterable[Record]) -> list[Record]:
    """One record for each content."""
    found: dict[int | None, Record] = {}
    for record in records:
        found.setdefault(record.checksum, record)
    return list(found.values())
