"""Re-basing: chains of patches whose decoding takes few links, whatever their length.

The values of a channel are numbered from 0 in the order of their checkpoints. Value i is a
patch against value ``i & (i - 1)``, i without its lowest set bit, and the writes between; so
no value is more than log2 i links from value 0. A writer can only patch against what it has
at hand, up to sixteen links, and stores the whole value then: this is where that is mended.
Snapshots of the compactor are numbered and patched in the same way.
"""

from __future__ import annotations

import heapq
import json
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter

import pyarrow as pa
import pyarrow.compute as pc

from logstore.bases import MAX_LINKS, Base, Known, patch_write
from logstore.codec import MIN_VALUE_BYTES, encode_patch
from logstore.dictionary import name_writes
from logstore.errors import MissingDataError
from logstore.reader import ThreadRead
from logstore.records import Encoding, Kind, Record, ValueRef, distinct
from logstore.values import Typed, ValueDecoder
from logstore.view import ThreadView
from logstore.walk import ChannelHistory

MIN_CHAIN = 8
"""Fewer new values of a channel are left as their writer stored them, for a later merge."""
LARGE_CHAIN_BYTES = 256 << 10
"""But not if they are so large together."""
LARGE_WRITE_BYTES = 64 << 10
"""Larger writes are patched against values of their own checkpoint, if their writer could not."""
MAX_SPAN = 4096
"""The most ancestors whose writes are put into a dictionary."""
_FIRST_SPAN = 64
"""The same for a value without a base."""
Chain = tuple[str, str, str]
"""Kind, namespace, channel."""


REBASE_COLUMNS = [
    "thread_id",
    "checkpoint_ns",
    "channel",
    "kind",
    "encoding",
    "ordinal",
    "size",
]
"""What tells which threads have values to number."""


def threads_to_rebase(streams: Iterable[Iterator[pa.Table]]) -> Iterator[str]:
    """The threads in which a channel has many values without a number, in ascending order.

    Args:
        streams: the `REBASE_COLUMNS` of all that is merged, each sorted by thread.
    """
    counted = heapq.merge(*map(_counts, streams), key=itemgetter(0))
    for thread_id, found in groupby(counted, key=itemgetter(0)):
        chains: dict[Chain, tuple[int, int]] = defaultdict(lambda: (0, 0))
        for _, chain, number, size in found:
            chains[chain] = (chains[chain][0] + number, chains[chain][1] + size)
        if any(_is_long(*counted) for counted in chains.values()):
            yield thread_id


def _is_long(number: int, size: int) -> bool:
    return number >= MIN_CHAIN or size >= LARGE_CHAIN_BYTES


def _counts(tables: Iterator[pa.Table]) -> Iterator[tuple[str, Chain, int, int]]:
    """For each thread and channel: values without a number and their bytes, by thread."""
    for table in tables:
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
        names = ["thread_id", "kind", "checkpoint_ns", "channel"]
        sums = [([], "count_all"), ("size", "sum")]
        grouped = table.filter(mask).group_by(names).aggregate(sums)
        wanted = [*names, "count_all", "size_sum"]
        rows = zip(*(grouped[name].to_pylist() for name in wanted), strict=True)
        for thread_id, kind, ns, channel, number, size in sorted(rows, key=itemgetter(0)):
            yield thread_id, (kind, ns, channel), number, size


def rebase_thread(
    read: ThreadRead, inputs: Collection[str], decoder: ValueDecoder, max_bytes: int
) -> Iterator[Record]:
    """New copies of the rows of a thread that are to be numbered, patched anew.

    Args:
        read: the whole thread.
        inputs: the keys of the runs whose rows are being rewritten; those of other runs stay.
        decoder: decodes the read's values.
        max_bytes: for the writes in one dictionary.
    """
    rows = [row for row in distinct(read.view.records) if _is_rewritten(row, inputs)]
    for chain, items in _chains(rows, read.view).items():
        numbered = _numbered(read.view, chain)
        if numbered or _is_long(len(items), sum(item.size or 0 for item in items)):
            yield from _Rebaser(read.view, numbered, decoder, max_bytes).run(items)
    yield from _patched_writes(rows, read.view, decoder)


def _patched_writes(
    rows: Iterable[Record], view: ThreadView, decoder: ValueDecoder
) -> Iterator[Record]:
    """Large writes that hold most of a value which was stored at their own checkpoint."""
    values: dict[tuple[str, str], list[Record]] = defaultdict(list)
    for row in view.records:
        if row.kind == Kind.BLOB and _is_value(row) and (row.size or 0) >= LARGE_WRITE_BYTES:
            values[(row.checkpoint_ns, row.checkpoint_id)].append(row)
    for write in rows:
        large = write.encoding == Encoding.RAW and (write.size or 0) >= LARGE_WRITE_BYTES
        at = values.get((write.checkpoint_ns, write.checkpoint_id), ())
        if write.kind != Kind.WRITE or not large or not at:
            continue
        decoder.forget()
        try:
            (_, data), *found = decoder.load([write, *at])
        except MissingDataError:
            continue
        bases = {
            r.channel or "": Base(r.channel or "", r.version or "", value)
            for r, (_, value) in zip(at, found, strict=True)
        }
        patched = patch_write(write, data, Known(bases, fresh=frozenset(bases))).record
        if patched.encoding == Encoding.PATCH:
            yield patched


def _is_rewritten(row: Record, inputs: Collection[str]) -> bool:
    return not isinstance(row.value, ValueRef) or row.value.run_key in inputs


def _chains(rows: Iterable[Record], view: ThreadView) -> dict[Chain, list[Record]]:
    """The values without a number, by channel, in the order of their checkpoints."""
    found: dict[Chain, list[Record]] = defaultdict(list)
    for row in rows:
        large = (row.size or 0) >= MIN_VALUE_BYTES
        if row.ordinal is None and large and _is_value(row) and _stays(row, view):
            found[_chain_of(row)].append(row)
    for items in found.values():
        items.sort(key=lambda r: (r.checkpoint_id, r.stamp))
    return found


def _is_value(row: Record) -> bool:
    if row.encoding not in (Encoding.RAW, Encoding.PATCH, Encoding.OBJECT):
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
    current = view.snapshot(row.checkpoint_ns, row.checkpoint_id, row.channel or "")
    return current is not None and current.stamp == row.stamp


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
        max_bytes: int,
    ) -> None:
        self._view = view
        self._numbered = numbered
        self._decoder = decoder
        self._max_bytes = max_bytes
        self._held: dict[int, _Held] = {}

    def run(self, items: Sequence[Record]) -> Iterator[Record]:
        """The records anew."""
        number = max(self._numbered, default=-1) + 1
        previous: _Held | None = None
        for item in items:
            try:
                typed = self._decode(item, previous)
            except MissingDataError:
                continue  # its base is hidden; nobody can read it, and it may go with it
            previous = _Held(item, typed)
            yield self._patched(item, typed[1], number)
            self._held[number] = previous
            self._let_go(number)
            number += 1

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
        base = None if number == 0 else self._base(number & (number - 1))
        if number and (base is None or base.record.checkpoint_id >= item.checkpoint_id):
            return whole  # what came later may itself have been made against this one
        steps = self._steps(item, base.record if base else None)
        if sum(w.size or 0 for step in steps for w in step) > self._max_bytes:
            steps = []
        names = name_writes([[w.checksum or 0 for w in step] for step in steps])
        writes = [w for step in reversed(steps) for w in step] if names else []
        if base is None and not writes:
            return whole
        written = [typed[1] for typed in self._decoder.load(writes)]
        patch = encode_patch(value, base.typed[1] if base else b"", written)
        if patch is None:
            return whole
        return whole._replace(
            value=patch,
            encoding=Encoding.PATCH,
            base_version=_name_of(base.record) if base else None,
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

    def _steps(self, item: Record, base: Record | None) -> list[list[Record]]:
        """The channel's writes between the base and the value, nearest ancestor first.

        None of them if the base lies on another branch. Without a base those of the nearest
        ancestors: a first value is most often made of a few writes.
        """
        view, ns = self._view, item.checkpoint_ns
        steps: list[list[Record]] = []
        current = view.ancestor(ns, item.checkpoint_id)
        while current is not None and (base is None or current.checkpoint_id != base.checkpoint_id):
            parent = current.parent_checkpoint_id
            if base is None and (parent is None or len(steps) == _FIRST_SPAN):
                return steps
            if parent is None or parent >= item.checkpoint_id or len(steps) >= MAX_SPAN:
                return []
            steps.append([w for w in view.writes_before(current) if w.channel == item.channel])
            current = view.ancestor(ns, parent)
        return steps if current is not None else []


def patch_snapshot(
    snapshot: Record,
    history: ChannelHistory,
    load: Callable[[Sequence[Record]], list[Typed]],
) -> Record:
    """A new snapshot as a patch against the snapshot and the writes that it was folded from.

    Args:
        snapshot: with its whole value.
        history: what it was folded from.
        load: gives the serde's form of records' values.
    """
    seed, value = history.seed, snapshot.value
    assert isinstance(value, bytes)
    if seed is not None and (seed.kind != Kind.SNAPSHOT or links_of(seed) % MAX_LINKS == 0):
        return snapshot
    steps = [[w for w in history.writes if w.checkpoint_id == at] for at in history.span]
    names = name_writes([[w.checksum or 0 for w in step] for step in steps])
    if names is None or len(steps) > MAX_SPAN:
        return snapshot
    base = b"" if seed is None else load([seed])[0][1]
    patch = encode_patch(value, base, [data for _, data in load(history.writes)])
    if patch is None:
        return snapshot
    return snapshot._replace(
        value=patch,
        encoding=Encoding.PATCH,
        base_version=None if seed is None else seed.checkpoint_id,
        dictionary=names if history.writes else None,
    )


def links_of(seed: Record) -> int:
    """The number of snapshots in a row, this one included, that were folded from another."""
    cover = json.loads(seed.cover or "{}") if seed.kind == Kind.SNAPSHOT else {}
    links: int = cover.get("links", 0)
    return links


def _name_of(record: Record) -> str | None:
    return record.checkpoint_id if record.kind == Kind.SNAPSHOT else record.version


def _prefixes(number: int) -> Iterator[int]:
    while True:
        yield number
        if number == 0:
            return
        number &= number - 1
