"""logstore: a LangGraph checkpoint saver whose only storage is an object store.

The public surface is what `__all__` names; how the parts work together is told in
`FORMAT.md` beside this file.
"""

from logstore.errors import (
    AccessDeniedError,
    BucketNotFoundError,
    ClosedError,
    CommitUnknownError,
    CorruptObjectError,
    FormatError,
    FormatVersionError,
    InvalidNameError,
    InvalidOptionError,
    InvalidURIError,
    LogStoreError,
    MissingDataError,
    ObjectStoreError,
    OutcomeUnknownError,
    ParentCycleError,
    ReadError,
    ReducerImportError,
    StoreMismatchError,
    ThreadPoisonedError,
    UnavailableError,
    UnsupportedStoreError,
    UsageError,
    WriteError,
)
from logstore.saver import LogStoreSaver

__all__ = [
    "AccessDeniedError",
    "BucketNotFoundError",
    "ClosedError",
    "CommitUnknownError",
    "CorruptObjectError",
    "FormatError",
    "FormatVersionError",
    "InvalidNameError",
    "InvalidOptionError",
    "InvalidURIError",
    "LogStoreError",
    "LogStoreSaver",
    "MissingDataError",
    "ObjectStoreError",
    "OutcomeUnknownError",
    "ParentCycleError",
    "ReadError",
    "ReducerImportError",
    "StoreMismatchError",
    "ThreadPoisonedError",
    "UnavailableError",
    "UnsupportedStoreError",
    "UsageError",
    "WriteError",
]
