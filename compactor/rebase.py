"""Re-basing: chains of patches whose decoding takes few links, whatever their length.

The values of a channel are numbered from 0 in the order of their checkpoints. Value i is a
patch against value ``i & (i - 1)``, i without its lowest set bit, and the writes between; so
no value is more than log2 i links from value 0. A writer can only patch against what it has
at hand, up to sixteen links, and stores the whole value then: this is where that is mended.
Snapshots of the compactor are numbered and patched in the same way.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from logstore.codec import MIN_VALUE_BYTES, encode_patch
from logstore.dictionary import name_writes
from logstore.errors import MissingDataError
from logstore.reader import ThreadRead
from logstore.records import Encoding, Kind, Record
from logstore.values import Typed, ValueDecoder
from logstore.view import ThreadView

MIN_CHAIN = 8
"""Fewer new values of a channel are left as their writer stored them, for a later merge."""
MAX_SPAN = 4096
"""The most ancestors whose writes are put into a dictionary."""
Chain = tuple[str, str, str]
"""Kind, namespace, channel."""


def chains_to_rebase(table: pa.Table) -> set[str]:
    """The threads of a merged table in which a channel has many values without a number."""
    mask = pc.and_(
        pc.is_in(table["kind"], pa.array([Kind.BLOB, Kind.SNAPSHOT])),
        pc.and_(
            pc.is_null(table["ordinal"]),
            pc.and_(
                pc.is_in(table["encoding"], pa.array([Encoding.RAW, Encoding.PATCH])),
                pc.fill_null(pc.greater_equal(table["size"], MIN_VALUE_BYTES), False),
            ),
        ),
    )
    names = ["thread_id", "checkpoint_ns", "channel", "kind"]
    counted = table.filter(mask).select(names).group_by(names).aggregate([([], "count_all")])
    many = counted.filter(pc.greater_equal(counted["count_all"], MIN_CHAIN))
    return set(many["thread_id"].to_pylist())


def rebase_thread(read: ThreadRead, rows: Sequence[Record], decoder: ValueDecoder) -> list[Record]:
    """A thread's rows, those that are to be numbered patched anew.

    Args:
        read: the whole thread, the rows included.
        rows: the rows that are about to be written into a run.
        decoder: decodes the read's values.
    """
    changed: dict[int, Record] = {}
    for chain, items in _chains(rows).items():
        numbered = _numbered(read.view, chain)
        if len(items) >= MIN_CHAIN or numbered:
            changed.update(_Rebaser(read.view, numbered, decoder).run(items))
    return [changed.get(id(row), row) for row in rows]


def _chains(rows: Iterable[Record]) -> dict[Chain, list[Record]]:
    """The values without a number, by channel, in the order of their checkpoints."""
    found: dict[Chain, list[Record]] = defaultdict(list)
    for row in rows:
        if _is_value(row) and row.ordinal is None and (row.size or 0) >= MIN_VALUE_BYTES:
            found[_chain_of(row)].append(row)
    for items in found.values():
        items.sort(key=lambda r: (r.checkpoint_id, r.stamp))
    return found


def _is_value(row: Record) -> bool:
    if row.encoding not in (Encoding.RAW, Encoding.PATCH):
        return False
    return row.kind == Kind.SNAPSHOT or (row.kind == Kind.BLOB and row.version is not None)


def _chain_of(row: Record) -> Chain:
    return (row.kind, row.checkpoint_ns, row.channel or "")


def _numbered(view: ThreadView, chain: Chain) -> dict[int, Record]:
    """The values of a channel that have their number already, and stay."""
    return {
        r.ordinal: r
        for r in view.records
        if r.ordinal is not None and _is_value(r) and _chain_of(r) == chain and _stays(r, view)
    }


def _stays(row: Record, view: ThreadView) -> bool:
    """Whether nothing has replaced it: a merge drops a snapshot that was."""
    if row.kind != Kind.SNAPSHOT:
        return True
    return view.snapshot(row.checkpoint_ns, row.checkpoint_id, row.channel or "") is row


@dataclass(frozen=True, slots=True)
class _Held:
    record: Record
    typed: Typed


class _Rebaser:
    """Numbers and patches the values of one channel, holding few of them at a time."""

    def __init__(
        self,
        view: ThreadView,
        numbered: Mapping[int, Record],
        decoder: ValueDecoder,
    ) -> None:
        self._view = view
        self._numbered = numbered
        self._decoder = decoder
        self._held: dict[int, _Held] = {}

    def run(self, items: Sequence[Record]) -> dict[int, Record]:
        """The changed records, by the identity of the old ones."""
        changed: dict[int, Record] = {}
        number = max(self._numbered, default=-1) + 1
        previous: _Held | None = None
        for item in items:
            try:
                typed = self._decode(item, previous)
            except MissingDataError:
                continue  # its base is hidden; nobody can read it, and it may go with it
            previous = _Held(item, typed)
            changed[id(item)] = self._patched(item, typed[1], number)
            self._held[number] = previous
            self._let_go(number)
            number += 1
        return changed

    def _decode(self, item: Record, previous: _Held | None) -> Typed:
        self._decoder.forget()
        for held in (*self._held.values(), *([previous] if previous else [])):
            self._decoder.prime(held.record, held.typed)
        return self._decoder.load([item])[0]

    def _patched(self, item: Record, value: bytes, number: int) -> Record:
        whole = item._replace(
            ordinal=number,
            value=value,
            encoding=Encoding.RAW,
            base_channel=None,
            base_version=None,
            dictionary=None,
            size=len(value),
        )
        if number == 0:
            return whole
        base = self._base(number & (number - 1))
        if base is None:
            return whole
        steps = self._steps(item, base.record)
        names = name_writes([[w.checksum or 0 for w in step] for step in steps])
        writes = [w for step in reversed(steps) for w in step] if names else []
        written = [typed[1] for typed in self._decoder.load(writes)]
        patch = encode_patch(value, base.typed[1], written)
        if patch is None:
            return whole
        return whole._replace(
            value=patch,
            encoding=Encoding.PATCH,
            base_version=_name_of(base.record),
            dictionary=names if writes else None,
        )

    def _base(self, number: int) -> _Held | None:
        if number not in self._held:
            record = self._numbered.get(number)
            if record is None:
                return None
            self._held[number] = _Held(record, self._decoder.load([record])[0])
        return self._held[number]

    def _let_go(self, number: int) -> None:
        """Keep what later values may be patched against: the number without its low bits."""
        wanted = set(_prefixes(number))
        self._held = {n: held for n, held in self._held.items() if n in wanted}

    def _steps(self, item: Record, base: Record) -> list[list[Record]]:
        """The channel's writes between the base and the value, nearest ancestor first.

        None if the base lies on another branch: then the patch does without them.
        """
        view, ns = self._view, item.checkpoint_ns
        steps: list[list[Record]] = []
        current = view.ancestor(ns, item.checkpoint_id)
        while current is not None and current.checkpoint_id != base.checkpoint_id:
            parent = current.parent_checkpoint_id
            if parent is None or len(steps) >= MAX_SPAN:
                return []
            steps.append([w for w in view.writes_before(current) if w.channel == item.channel])
            current = view.ancestor(ns, parent)
        return steps if current is not None else []


def _name_of(record: Record) -> str | None:
    return record.checkpoint_id if record.kind == Kind.SNAPSHOT else record.version


def _prefixes(number: int) -> Iterator[int]:
    while True:
        yield number
        if number == 0:
            return
        number &= number - 1
