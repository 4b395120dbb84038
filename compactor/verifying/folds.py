"""Folding a thread's snapshots a second time, from what the graph itself stored.

Each is folded from the previous one that was folded here, never from one that a job made; at
each head the whole walk is folded at once as well, and both must agree. So what is compared
is LangGraph's own walk, and the work grows with the thread and not with its square.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from compactor.folding.channels import ChannelSpec, ChannelTable
from compactor.folding.fold import BrokenLawError, Folder, Unfoldable, typed_value
from compactor.folding.snapshots import changed_reducer, counted_channels, parents_first
from compactor.verifying.findings import REBUILD, RESTORE, Problem, ThreadLedger
from logstore.errors import CorruptObjectError, ReadError
from logstore.late import Late
from logstore.reader import ThreadRead
from logstore.records import Kind, Record
from logstore.store import LogStore
from logstore.view import ThreadView
from logstore.walk import Trust, any_snapshot, no_snapshot, snapshot_stands, walk

_MEND_THE_REDUCER = (
    "make the reducer deterministic (no clock, no random ids) and indifferent to how writes are "
    "batched; then run `compactor rebuild`"
)


class FoldCheck:
    """Proves the snapshots of one thread, and the laws of its reducers."""

    def __init__(
        self,
        store: LogStore,
        table: ChannelTable,
        folder: Folder,
        ledger: ThreadLedger,
        read: ThreadRead,
    ) -> None:
        """Note in `ledger` what is found about a read of the whole history."""
        self._table = table
        self._folder = folder
        self._ledger = ledger
        self._read = read
        own = [r for r in read.view.records if r.kind != Kind.SNAPSHOT]
        self._bare = ThreadView(read.view.thread_id, own)
        """The thread without the snapshots of any job; those that are folded here are added."""
        self._decoder = store.reader.decoder(replace(read, view=self._bare, late=Late()))
        self._stored = store.reader.decoder(read)

    def run(self) -> None:
        """Prove the snapshots, then the laws at each head."""
        for checkpoint in list(parents_first(self._bare)):
            for channel, snapshot in self._snapshots_at(checkpoint):
                self._prove(checkpoint, channel, snapshot)
        for ns in self._bare.namespaces():
            head = self._bare.head(ns)
            if head is not None:
                self._try_laws(head)

    # -- snapshots -------------------------------------------------------------------

    def _snapshots_at(self, checkpoint: Record) -> Iterator[tuple[str, Record]]:
        """Those that readers would use."""
        view = self._read.view
        ns, checkpoint_id = checkpoint.checkpoint_ns, checkpoint.checkpoint_id
        for channel, snapshot in view.snapshots(ns, checkpoint_id).items():
            if snapshot_stands(view, checkpoint, channel, self._read.late):
                yield channel, snapshot

    def _prove(self, checkpoint: Record, channel: str, snapshot: Record) -> None:
        spec = self._table.spec(checkpoint.thread_id, checkpoint.checkpoint_ns, channel)
        if spec is None:
            self._ledger.doubt(checkpoint, channel)
            return
        made = self._fold(spec, checkpoint, any_snapshot)
        if made is not None:
            self._keep(made)
        if not spec.made(snapshot):
            self._ledger.fail(
                Problem.CHANGED_REDUCER,
                changed_reducer(snapshot, spec),
                "if the change is meant, run `compactor rebuild`; if not, name the former reducer",
                at=snapshot,
            )
        elif made is not None:
            self._compare(snapshot, made)

    def _keep(self, made: Record) -> None:
        """Let the next fold begin here, and let go of where this one began."""
        ns, channel = made.checkpoint_ns, made.channel or ""
        checkpoint = self._bare.ancestor(ns, made.checkpoint_id)
        if checkpoint is not None:
            seed = walk(self._bare, checkpoint, [channel], Late())[channel].seed
            if seed is not None and seed.kind == Kind.SNAPSHOT:
                self._bare.void_snapshot(ns, seed.checkpoint_id, channel)
        self._bare.add_snapshot(made)

    def _compare(self, snapshot: Record, made: Record) -> None:
        try:
            self._stored.forget()  # all snapshots of a long thread are too much to hold
            stored = self._stored.load([snapshot])[0]
        except (CorruptObjectError, ReadError):
            return  # a finding already
        expected = typed_value(made)
        if self._folder.same_value(stored, expected):
            self._ledger.proved += 1
            return
        self._ledger.fail(
            Problem.WRONG_SNAPSHOT,
            f"its {len(stored[1])} bytes are not the value that LangGraph's walk back to the "
            f"nearest stored value gives ({len(expected[1])} bytes)",
            REBUILD,
            at=snapshot,
        )

    # -- laws ------------------------------------------------------------------------

    def _try_laws(self, head: Record) -> None:
        """The whole walk from a head at once, against the same in parts."""
        for channel in self._bare.versions(head):
            if self._bare.stored_value(head, channel) is not None:
                continue
            spec = self._table.spec(head.thread_id, head.checkpoint_ns, channel)
            if spec is not None:
                self._try_law(spec, head)
            elif channel in counted_channels(head):
                self._ledger.doubt(head, channel)

    def _try_law(self, spec: ChannelSpec, head: Record) -> None:
        whole = self._fold(spec, head, no_snapshot)
        parts = None if whole is None else self._fold(spec, head, any_snapshot)
        if whole is None or parts is None:
            return
        if not self._folder.same_value(typed_value(whole), typed_value(parts)):
            self._ledger.fail(
                Problem.BROKEN_LAW,
                "folding all writes at once and in the parts between snapshots gave different "
                f"values at thread {head.thread_id!r}, step {head.step}",
                _MEND_THE_REDUCER,
                at=head,
                channel=spec.name,
            )

    # -- folding ---------------------------------------------------------------------

    def _fold(self, spec: ChannelSpec, checkpoint: Record, trusts: Trust) -> Record | None:
        """The channel's value entering a checkpoint; None with the reason noted."""
        try:
            history = walk(self._bare, checkpoint, [spec.name], Late(), trusts)[spec.name]
        except ReadError as error:
            self._ledger.fail(
                Problem.MISSING_RECORD, str(error), RESTORE, at=checkpoint, channel=spec.name
            )
            return None
        try:
            self._decoder.forget()
            return self._folder.fold(spec, checkpoint, history, self._decoder.load, 0, 0)
        except BrokenLawError as error:
            self._ledger.fail(
                Problem.BROKEN_LAW, str(error), _MEND_THE_REDUCER, at=checkpoint, channel=spec.name
            )
        except Unfoldable as error:
            self._ledger.unproved[spec.label] = str(error)
        except (CorruptObjectError, ReadError):
            pass  # what cannot be read is a finding already
        return None
