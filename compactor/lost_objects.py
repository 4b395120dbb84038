"""Telling an object that is lost from one that another job has replaced."""

from __future__ import annotations

from functools import partial

from compactor.plan import Plan, manifest_etag
from logstore.errors import MissingDataError
from logstore.reader import ThreadRead
from logstore.store import LogStore
from logstore.tail import StartAgain
from logstore.values import ValueDecoder

_REMEDY = (
    "Restore it from a version or copy of the bucket; `compactor verify` names all that need it"
)


class LostObjectError(MissingDataError):
    """An object that a run or a manifest names does not exist, and no job has deleted it."""


class LostObjects:
    """What a job finds lost; the threads that need it stay as they are, and others go on.

    Attributes:
        found: for each thread, what is said of it.
    """

    def __init__(self, store: LogStore, plan: Plan) -> None:
        """Nothing is lost yet."""
        self._store = store
        self._plan = plan
        self.found: dict[str, str] = {}

    def decoder(self, read: ThreadRead) -> ValueDecoder:
        """Decodes the values of a read's records.

        Where an object is lost `load` raises `LostObjectError`.
        """
        return self._store.reader.decoder(read, lost=partial(self._note, read.view.thread_id))

    def judge(self, error: StartAgain) -> LostObjectError | None:
        """The error if an object is lost; None if another job has committed.

        A job deletes only after its commit.
        """
        if manifest_etag(self._store, self._plan.partition) != self._plan.etag:
            return None
        return LostObjectError(
            f"an object that a run or a manifest of partition {self._plan.partition} names does "
            f"not exist ({error.__cause__}). {_REMEDY}"
        )

    def _note(self, thread_id: str, error: StartAgain) -> LostObjectError | None:
        lost = self.judge(error)
        if lost is not None:
            self.found[f"thread {thread_id!r}"] = str(lost)
        return lost
