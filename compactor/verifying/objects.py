"""Reachability: every object that is named exists, and every object is named or young."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from compactor.copies import is_older, read_copy
from compactor.lost import lost_manifest
from compactor.plan import manifest_etag
from compactor.verifying.findings import REBUILD, RESTORE, Checked, Finding, Problem
from logstore.errors import CorruptObjectError, FormatError, ObjectNotFoundError
from logstore.keys import (
    COPIES,
    LOG,
    MANIFESTS,
    RUNS,
    SNAPSHOTS,
    STORE_JSON,
    TABLES,
    VALUES,
    SegmentName,
    manifest_beside,
    partition_manifest_key,
    run_prefix,
    snapshot_manifest_key,
    snapshots_prefix,
    tables_prefix,
    values_prefix,
)
from logstore.manifest import PartitionManifest, RunEntry, SnapshotManifest
from logstore.objects.base import ObjectInfo
from logstore.store import LogStore, Settings
from logstore.tail import Listing, StartAgain

_KEY = re.compile(
    rf"{STORE_JSON}|probe/[^/]+|(?:{MANIFESTS}|{COPIES})/partition=(?P<manifest>\d{{4}})"
    rf"|(?:{LOG}|{RUNS}|{SNAPSHOTS}|{VALUES}|{TABLES})/partition=(?P<folder>\d{{4}})/.+"
)


@dataclass
class PartitionObjects:
    """The objects of a partition, and what is wrong with them."""

    partition: int
    date: float = 0.0
    """The store's clock: seconds since the epoch."""
    threads: set[str] = field(default_factory=set)
    """The threads that runs, segments and snapshot manifests tell of."""
    folders: dict[str, list[ObjectInfo]] = field(default_factory=dict)
    """By the key of a thread's snapshot manifest: the objects with values of the thread."""
    broken_runs: list[RunEntry] = field(default_factory=list)
    """Runs that are named and cannot be read: nothing is proved of their threads."""
    manifest_is_broken: bool = False
    findings: list[Finding] = field(default_factory=list)
    count: int = 0

    def checked(self) -> Checked:
        """What was counted and found."""
        return Checked(objects=self.count, findings=tuple(self.findings))

    def readable(self, thread_id: str) -> bool:
        """Whether all that may hold the thread can be read."""
        broken = any(run.may_hold(thread_id) for run in self.broken_runs)
        return not broken and not self.manifest_is_broken


def foreign_objects(store: LogStore, settings: Settings) -> Checked:
    """The objects below the store's root that are none of a store's."""
    found = []
    count = 0
    for page in store.objects.list(""):
        for info in page.objects:
            match = _KEY.fullmatch(info.key)
            partition = match and (match["manifest"] or match["folder"])
            count += not partition
            if match is None or (partition and int(partition) >= settings.partitions):
                found.append(_foreign(info.key))
    return Checked(objects=count, findings=tuple(found))


def _foreign(key: str) -> Finding:
    return Finding(
        Problem.FOREIGN_OBJECT,
        "its key is none that a store of this format has",
        "move it out of the store's prefix",
        key,
    )


def check_objects(store: LogStore, settings: Settings, partition: int) -> PartitionObjects:
    """Compare what a partition's manifests and segments name with what there is.

    Raises:
        StartAgain: a job committed meanwhile.
    """
    return _ObjectCheck(store, settings, partition).run()


class _ObjectCheck:
    def __init__(self, store: LogStore, settings: Settings, partition: int) -> None:
        self._store = store
        self._settings = settings
        self._found = PartitionObjects(partition)

    def run(self) -> PartitionObjects:
        found = self._found
        manifest, etag = self._manifest()
        listing = self._listing()
        found.date = listing.date
        self._segments(manifest, listing)
        self._runs(manifest, listing)
        self._tables(manifest)
        self._snapshots()
        # What looked wrong may be a job's work half seen.
        if found.findings and manifest_etag(self._store, found.partition) != etag:
            raise StartAgain
        return found

    def _say(self, problem: Problem, key: str, detail: str, remedy: str) -> None:
        self._found.findings.append(Finding(problem, detail, remedy, key))

    # -- the manifest --------------------------------------------------------------

    def _manifest(self) -> tuple[PartitionManifest, str | None]:
        partition = self._found.partition
        try:
            found = self._store.reader.partition_manifest(partition)
            self._copy(found[0])
            return found
        except CorruptObjectError as error:
            self._found.manifest_is_broken = True
            key = partition_manifest_key(partition)
            self._say(Problem.UNREADABLE, key, str(error), REBUILD)
            return PartitionManifest(partition), manifest_etag(self._store, partition)

    def _copy(self, manifest: PartitionManifest) -> None:
        """The copy of the manifest. That it cannot be read is mended by the next job."""
        copy, _ = read_copy(self._store, manifest.partition)
        if copy is not None and copy.generation > manifest.generation:
            key = partition_manifest_key(manifest.partition)
            self._say(Problem.STALE_MANIFEST, key, is_older(manifest, copy), REBUILD)

    # -- the log -------------------------------------------------------------------

    def _listing(self) -> Listing:
        listed = self._store.log.list(self._found.partition)
        arrived = {}
        for key, when in listed.arrived.items():
            self._found.count += 1
            try:
                SegmentName.parse(key)
                arrived[key] = when
            except CorruptObjectError:
                self._found.findings.append(_foreign(key))
        return replace(listed, arrived=arrived)

    def _segments(self, manifest: PartitionManifest, listing: Listing) -> None:
        def unreadable(key: str, error: CorruptObjectError) -> None:
            self._say(Problem.UNREADABLE, key, str(error), RESTORE)

        tail = self._store.log.read(listing, manifest.merged.keys(), None, unreadable)
        for key, segment in tail.segments.items():
            self._found.threads.update(segment.table["thread_id"].to_pylist())
            named = {name for names in segment.builds_on.values() for name in names}
            gone = named - manifest.merged.keys() - tail.segments.keys() - listing.arrived.keys()
            for missing in sorted(gone if manifest.generation == 0 else ()):
                self._say(
                    Problem.MISSING_OBJECT,
                    missing,
                    f"the segment {key} builds on it, and nothing was ever merged",
                    RESTORE,
                )

    # -- runs ----------------------------------------------------------------------

    def _runs(self, manifest: PartitionManifest, listing: Listing) -> None:
        listed = {info.key: info for info in self._list(run_prefix(manifest.partition))}
        for run in manifest.runs:
            info = listed.get(run.key)
            if info is None:
                self._broken(run, Problem.MISSING_OBJECT, "the partition manifest names it")
            elif info.size != run.size:
                detail = f"it has {info.size} bytes; the partition manifest says {run.size}"
                self._broken(run, Problem.UNREADABLE, detail)
            else:
                self._read(run)
        if self._found.manifest_is_broken:
            return
        named = {run.key for run in manifest.runs} | manifest.retired.keys()
        for info in listed.values():
            if info.key not in named and info.key not in manifest.condemned:
                self._unnamed_run(info, manifest, listing)

    def _tables(self, manifest: PartitionManifest) -> None:
        """Files of kept tables that nothing names; those that are named are read elsewhere."""
        named = manifest.kept.files.keys() | manifest.retired.keys() | set(manifest.condemned)
        for info in self._list(tables_prefix(manifest.partition)):
            if info.key not in named and not self._found.manifest_is_broken:
                self._left_over(info)

    def _broken(self, run: RunEntry, problem: Problem, detail: str) -> None:
        self._found.broken_runs.append(run)
        self._say(problem, run.key, detail, RESTORE)

    def _read(self, run: RunEntry) -> None:
        try:
            self._store.runs.check(run)
            for table in self._store.runs.columns(run, ["thread_id"]):
                self._found.threads.update(table["thread_id"].unique().to_pylist())
        except FormatError as error:
            self._broken(run, Problem.UNREADABLE, str(error))

    def _unnamed_run(self, info: ObjectInfo, manifest: PartitionManifest, listing: Listing) -> None:
        try:
            reason = lost_manifest(self._store, manifest, listing, info)
        except (StartAgain, FormatError):
            reason = None
        if reason is not None:
            key = partition_manifest_key(manifest.partition)
            self._say(Problem.STALE_MANIFEST, key, reason, REBUILD)
        else:
            self._left_over(info)

    def _left_over(self, info: ObjectInfo) -> None:
        if self._is_old(info):
            self._say(
                Problem.UNNAMED_OBJECT,
                info.key,
                "no manifest names it; a job that lost or was killed left it",
                "none is needed: a `compactor run` deletes it",
            )

    # -- snapshots -----------------------------------------------------------------

    def _snapshots(self) -> None:
        folders = self._found.folders
        manifests = set()
        for prefix in (values_prefix, snapshots_prefix):
            for info in self._list(prefix(self._found.partition)):
                manifest = manifest_beside(info.key)
                beside = folders.setdefault(manifest, [])
                if info.key == manifest:
                    manifests.add(info.key)
                else:
                    beside.append(info)
        known = {snapshot_manifest_key(self._found.partition, t) for t in self._found.threads}
        for key in sorted(manifests - known):
            self._unknown_thread(key)

    def _unknown_thread(self, key: str) -> None:
        """A snapshot manifest of a thread that no run and no segment holds."""
        try:
            manifest = SnapshotManifest.decode(key, self._store.objects.get(key).data)
        except ObjectNotFoundError as error:
            raise StartAgain from error
        except FormatError as error:
            self._say(Problem.UNREADABLE, key, str(error), REBUILD)
            return
        if snapshot_manifest_key(self._found.partition, manifest.thread_id) != key:
            self._say(
                Problem.STALE_MANIFEST,
                key,
                f"it tells of thread {manifest.thread_id!r}, whose key is another: it was copied "
                "or renamed",
                RESTORE,
            )
        else:
            self._found.threads.add(manifest.thread_id)

    # -- objects -------------------------------------------------------------------

    def _list(self, prefix: str) -> Iterable[ObjectInfo]:
        for page in self._store.objects.list(prefix):
            for info in page.objects:
                self._found.count += 1
                yield info

    def _is_old(self, info: ObjectInfo) -> bool:
        return info.modified < self._found.date - self._settings.long_grace_s
