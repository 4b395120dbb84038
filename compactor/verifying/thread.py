"""Proving one thread: its values, its snapshots, its manifest, and the reducers' laws."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set

from langgraph.checkpoint.serde.base import SerializerProtocol

from compactor.cleaning.sweep import unnamed_snapshots
from compactor.folding.channels import ChannelTable
from compactor.folding.fold import Folder
from compactor.folding.snapshots import parents_first
from compactor.verifying.findings import RESTORE, Checked, Problem, ThreadLedger
from compactor.verifying.folds import FoldCheck
from compactor.verifying.heads import HeadCheck
from logstore.cli.places import Places
from logstore.errors import CorruptObjectError, ObjectNotFoundError, ReadError
from logstore.objects.base import ObjectInfo
from logstore.reader import ThreadRead
from logstore.records import Encoding, Kind, Record
from logstore.store import LogStore
from logstore.tail import StartAgain
from logstore.view import ThreadView

_HELD_BYTES = 64 << 20
"""Decoded values that are kept at hand as bases of patches."""
_STORED = (Encoding.RAW, Encoding.PATCH, Encoding.OBJECT)


def check_thread(
    store: LogStore,
    table: ChannelTable,
    serde: SerializerProtocol,
    thread_id: str,
    beside: Sequence[ObjectInfo],
    before: float,
    named_by_runs: Callable[[], Set[str]],
) -> Checked:
    """Check a thread.

    Args:
        store: an open store.
        table: the channels whose reducers are known.
        serde: the saver's serde.
        thread_id: the thread.
        beside: the objects in its folder.
        before: the store's time before which an object that nothing names is left over.
        named_by_runs: gives the objects that rows of the partition's runs name.

    Raises:
        StartAgain: a job moved something meanwhile.
    """
    ledger = ThreadLedger(thread_id)
    _left_over(store, ledger, beside, before, named_by_runs)
    try:
        read = store.read_history(thread_id)
    except (CorruptObjectError, ReadError) as error:
        ledger.fail(Problem.UNREADABLE, str(error), RESTORE)
        return _checked(ledger, ThreadView(thread_id, ()))
    if _misses_objects(store, ledger, read):
        return _checked(ledger, read.view)
    folder = Folder(serde, "verify", 0, lambda: 0)  # nobody keeps what it makes
    _check_values(store, ledger, read)
    FoldCheck(store, table, folder, ledger, read).run()
    HeadCheck(store, table, folder, ledger).run()
    return _checked(ledger, read.view)


def _checked(ledger: ThreadLedger, view: ThreadView) -> Checked:
    ancestry = list(parents_first(view))
    return Checked(
        threads=1,
        checkpoints=sum(len(view.checkpoint_ids(ns)) for ns in view.namespaces()),
        values=ledger.values,
        snapshots=sum(len(view.snapshots(c.checkpoint_ns, c.checkpoint_id)) for c in ancestry),
        proved=ledger.proved,
        heads=ledger.heads,
        findings=tuple(ledger.findings),
        unproved=ledger.unproved,
    )


def _left_over(
    store: LogStore,
    ledger: ThreadLedger,
    beside: Sequence[ObjectInfo],
    before: float,
    named_by_runs: Callable[[], Set[str]],
) -> None:
    if not beside:
        return
    try:
        version = store.reader.snapshot_manifest(
            ledger.thread_id, store.partition(ledger.thread_id)
        )
    except CorruptObjectError:
        return  # reading the head tells of it
    retired, unknown = unnamed_snapshots(version.manifest, beside)
    old = [key for key, since in {**retired, **unknown}.items() if since < before]
    for key in sorted(set(old) - named_by_runs() if old else ()):
        ledger.fail(
            Problem.UNNAMED_OBJECT,
            "no snapshot manifest and no run names it any more",
            "none is needed: a `compactor run` deletes it within hours, with --purge at once",
            key,
        )


def _misses_objects(store: LogStore, ledger: ThreadLedger, read: ThreadRead) -> bool:
    """Whether rows name objects that do not exist.

    Raises:
        StartAgain: what named them has been replaced meanwhile.
    """
    naming = {_object_of(record): record for record in read.view.records}
    naming.pop(None, None)
    missing = [key for key in naming if key and not _exists(store, key)]
    if missing:
        again = {_object_of(record) for record in store.read_history(ledger.thread_id).view.records}
        if not again.issuperset(missing):
            raise StartAgain
    for key in missing:
        ledger.fail(Problem.MISSING_OBJECT, "a row of a run names it", RESTORE, key, naming[key])
    return bool(missing)


def _object_of(record: Record) -> str | None:
    return record.base_version if record.encoding == Encoding.OBJECT else None


def _exists(store: LogStore, key: str) -> bool:
    try:
        store.objects.get_range(key, 0, 1)
    except ObjectNotFoundError:
        return False
    return True


def _check_values(store: LogStore, ledger: ThreadLedger, read: ThreadRead) -> None:
    """Decode every value that can be shown, and so all that its patches were made against."""
    places = Places(store, read, head=False)
    decoder = store.reader.decoder(read)
    held = 0
    for record in sorted(read.view.records, key=_place_of):
        if record.encoding not in _STORED or record.kind == Kind.TOMBSTONE:
            continue
        if _may_be_lost(record) and not _is_shown(record, read.view):
            continue
        try:
            held += len(decoder.load([record])[0][1])
            ledger.values += 1
        except CorruptObjectError as error:
            ledger.fail(Problem.UNREADABLE, str(error), RESTORE, places.of(record), record)
        except ReadError as error:
            ledger.fail(Problem.MISSING_RECORD, str(error), RESTORE, places.of(record), record)
        if held > _HELD_BYTES:
            decoder.forget()
            held = 0


def _place_of(record: Record) -> tuple[str, str, str, str]:
    return (record.checkpoint_ns, record.kind, record.channel or "", record.checkpoint_id)


def _may_be_lost(record: Record) -> bool:
    """Whether a value that is not shown need not be readable.

    The base of a patch may be hidden; a snapshot may have been replaced.
    """
    return record.encoding == Encoding.PATCH or record.kind == Kind.SNAPSHOT


def _is_shown(record: Record, view: ThreadView) -> bool:
    if record.kind == Kind.SNAPSHOT:
        shown = view.snapshot(record.checkpoint_ns, record.checkpoint_id, record.channel or "")
        return shown is record
    return view.ancestor(record.checkpoint_ns, record.checkpoint_id) is not None
