"""Every error that logstore raises, in one tree, grouped by what a handler would do.

::

    LogStoreError
    ├── UsageError                  mend the call; nothing was sent
    │   ├── InvalidURIError
    │   ├── InvalidNameError
    │   ├── InvalidOptionError
    │   ├── ThreadExistsError
    │   ├── DeletedCheckpointError
    │   ├── QueryError              the SQL is wrong
    │   ├── ReducerImportError
    │   └── CheckpointModeReconfigurationError  restart the process to change mode or cadence
    ├── ObjectStoreError            the object store answered no, or not at all
    │   ├── ObjectNotFoundError
    │   ├── ConditionFailedError    a conditional write lost: re-read, decide anew
    │   ├── BucketNotFoundError
    │   ├── AccessDeniedError
    │   ├── UnavailableError        temporary: the same request may succeed later
    │   ├── OutcomeUnknownError     a write may or may not have happened: look
    │   └── UnsupportedStoreError   the store cannot keep the promises needed here
    ├── FormatError                 what is stored is not what was expected
    │   ├── CorruptObjectError
    │   ├── FormatVersionError
    │   ├── StoreMismatchError
    │   └── CheckpointModeMismatchError  convert the thread, or use delta mode
    ├── ReadError                   a read could not reach all that it needs
    │   ├── MissingDataError
    │   ├── SnapshotExpiredError    what an analytics snapshot pins is gone: take a fresh one
    │   └── ParentCycleError
    ├── ConversionError             stop what writes the thread, and repeat the conversion
    └── WriteError
        ├── CommitUnknownError      the write may still appear; nothing was acknowledged
        ├── HeadMovedError          another worker went on from the same checkpoint: reload
        ├── ThreadPoisonedError     an acknowledged write of this thread was lost
        └── ClosedError

A message names the object, says what was expected, and what to do about it.
"""

from __future__ import annotations


class LogStoreError(Exception):
    """The base class of every error that logstore raises on purpose."""


class UsageError(LogStoreError, ValueError):
    """The call cannot be carried out as it stands; nothing was sent to the store."""


class InvalidURIError(UsageError):
    """The store's URI is not one of the supported forms."""


class InvalidNameError(UsageError):
    """A thread id, namespace, channel or checkpoint id cannot be stored."""


class InvalidOptionError(UsageError):
    """An option has a value that is not allowed."""


class ThreadExistsError(UsageError):
    """A thread is to be copied onto one that has checkpoints."""


class DeletedCheckpointError(UsageError):
    """A put or its writes name a checkpoint that this process has deleted or seen deleted."""


class QueryError(UsageError):
    """A query over a store's tables cannot be run."""


class ReducerImportError(UsageError):
    """The operator's import path for a graph, reducer or serde does not resolve."""


class CheckpointModeReconfigurationError(UsageError):
    """The process runs with another channel mode or cadence already."""


class ObjectStoreError(LogStoreError):
    """The object store refused a request or did not answer it."""


class ObjectNotFoundError(ObjectStoreError):
    """The object does not exist: a real "no such key", never another failure."""


class ConditionFailedError(ObjectStoreError):
    """A conditional write lost: the object exists already, or has changed."""


class BucketNotFoundError(ObjectStoreError):
    """The bucket or directory that should hold the store does not exist."""


class AccessDeniedError(ObjectStoreError):
    """The credentials are missing, wrong, or not allowed to do this."""


class UnavailableError(ObjectStoreError):
    """The store did not serve a request for a reason that may pass."""


class OutcomeUnknownError(ObjectStoreError):
    """A write was sent and not answered clearly; it may have happened or happen yet."""


class UnsupportedStoreError(ObjectStoreError):
    """The store does not enforce what the protocol needs, such as conditional writes."""


class FormatError(LogStoreError):
    """A stored object is not what was expected."""


class CorruptObjectError(FormatError):
    """A stored object is truncated, damaged or fails its checksum."""


class FormatVersionError(FormatError):
    """A stored object was written by a newer format than this code knows."""


class StoreMismatchError(FormatError):
    """The store was created with other settings than the caller demands."""


class CheckpointModeMismatchError(FormatError):
    """A full-mode process met a checkpoint that was written in delta mode."""


class ConversionError(LogStoreError):
    """A thread cannot be converted now, or the conversion was overtaken."""


class ReadError(LogStoreError):
    """A read could not reach all the data that its answer needs."""


class MissingDataError(ReadError):
    """A record that should exist cannot be found; answering without it would be wrong."""


class SnapshotExpiredError(ReadError):
    """An object that an analytics snapshot pins was deleted after its grace."""


class ParentCycleError(ReadError):
    """The parents of a checkpoint run in a circle."""


class WriteError(LogStoreError):
    """A write was not stored."""


class CommitUnknownError(WriteError):
    """The outcome of a commit stayed unknown; its records may appear later."""


class HeadMovedError(WriteError):
    """A put's parent is no longer the head of its branch; only a saver with a fence raises it."""


class ThreadPoisonedError(WriteError):
    """An acknowledged write of this thread could not be stored; nothing may follow it."""


class ClosedError(WriteError):
    """The saver or store was closed before this call."""
