"""Object stores: one interface, with S3, a directory and memory behind it."""

from logstore.objects.base import ListPage, ObjectData, ObjectInfo, ObjectStore, Stored
from logstore.objects.probe import probe_conditional_writes
from logstore.objects.retry import RetryingObjectStore
from logstore.objects.uri import S3Options, open_object_store

__all__ = [
    "ListPage",
    "ObjectData",
    "ObjectInfo",
    "ObjectStore",
    "RetryingObjectStore",
    "S3Options",
    "Stored",
    "open_object_store",
    "probe_conditional_writes",
]
