"""Records for property tests: few keys, so that clashes are the rule."""

from __future__ import annotations

import json
from collections.abc import Sequence

from hypothesis import strategies as st

from logstore.records import Encoding, Kind, Record, Tombstone, checksum_of

THREADS = ["", "a", "b", "é"]
CHECKPOINTS = ["1", "2"]
WRITERS = ["w1", "w2"]
_MICROSECONDS = 1_750_000_000_000_000


@st.composite
def records(draw: st.DrawFn) -> Record:
    """One record as a segment brings it.

    A record is told from every other by its writer, lane position and stamp: two that
    agree in these are one record that was read twice, and so equal in the rest.
    """
    kind = draw(st.sampled_from(list(Kind)))
    stamp = draw(st.integers(0, 400))
    base = Record(
        thread_id=draw(st.sampled_from(THREADS)),
        checkpoint_ns=draw(st.sampled_from(["", "sub:1"])),
        checkpoint_id=draw(st.sampled_from(CHECKPOINTS)),
        kind=kind,
        stamp=stamp,
        writer=draw(st.sampled_from(WRITERS)),
        seq=draw(st.integers(0, 5)),
        arrived=_MICROSECONDS + draw(st.integers(0, 3)),
    )
    match kind:
        case Kind.CHECKPOINT:
            parent = draw(st.sampled_from([None, *CHECKPOINTS]))
            return _with_value(base, draw)._replace(parent_checkpoint_id=parent)
        case Kind.BLOB:
            version = draw(st.sampled_from([None, "", "v1", "v2"]))
            return _with_value(base, draw)._replace(channel=draw(_channels), version=version)
        case Kind.WRITE:
            return _with_value(base, draw)._replace(
                channel=draw(_channels),
                task_id=draw(st.sampled_from(["", "t1", "t2"])),
                task_path=draw(st.sampled_from(["", "~p"])),
                idx=draw(st.sampled_from([-4, -1, 0, 1])),
            )
        case Kind.SNAPSHOT:
            encoding = draw(st.sampled_from([Encoding.RAW, Encoding.ELSEWHERE, Encoding.VOID]))
            cover = json.dumps({"graves": draw(st.integers(0, 2))}, separators=(",", ":"))
            found = _with_value(base, draw) if encoding == Encoding.RAW else base
            return found._replace(channel=draw(_channels), encoding=encoding, cover=cover)
        case _:
            hidden = draw(st.dictionaries(st.sampled_from(WRITERS), st.integers(0, 3)))
            cover = Tombstone(hidden).to_json()
            return base._replace(checkpoint_ns="", checkpoint_id="", cover=cover)


_channels = st.sampled_from(["", "d", "e"])


def _with_value(record: Record, draw: st.DrawFn) -> Record:
    value = draw(st.sampled_from([b"", b"1", b"22"]))
    return record._replace(type="bytes", value=value, checksum=checksum_of("bytes", value))


def record_sets(max_size: int = 24) -> st.SearchStrategy[list[Record]]:
    """Different records, as writers make them: no stamp twice."""
    return st.lists(records(), max_size=max_size, unique_by=lambda r: r.stamp).map(_consistent)


def _consistent(found: Sequence[Record]) -> list[Record]:
    """Of one writer, what has a lane position arrived with it."""
    arrived: dict[tuple[str, int], int] = {}
    return [r._replace(arrived=arrived.setdefault((r.writer, r.seq), r.arrived)) for r in found]


@st.composite
def dealt(draw: st.DrawFn, late_copies: bool = False) -> tuple[list[Record], list[list[Record]]]:
    """Records, and three parts that hold them all, some repeatedly, in any order.

    Args:
        draw: Hypothesis's.
        late_copies: whether a repetition may have arrived later, as a delayed request's does.
    """
    found = draw(record_sets())
    again = draw(st.lists(st.sampled_from(found), max_size=8)) if found else []
    if late_copies:
        # Snapshots are made by jobs and lie in runs; no request brings one again.
        again = [
            r
            if r.kind == Kind.SNAPSHOT
            else r._replace(arrived=r.arrived + draw(st.integers(0, 5)))
            for r in again
        ]
    order = draw(st.permutations([*found, *again]))
    cuts = sorted(draw(st.lists(st.integers(0, len(order)), min_size=2, max_size=2)))
    return found, [order[: cuts[0]], order[cuts[0] : cuts[1]], order[cuts[1] :]]
