"""The memory store: one set of objects a name, in this process only."""

from __future__ import annotations

import os
import secrets
import threading

import pytest

from logstore.errors import ObjectNotFoundError
from logstore.objects import open_object_store
from logstore.objects.memory import MemoryObjectStore


def test_one_name_is_one_store_until_it_is_forgotten() -> None:
    name = secrets.token_hex(6)
    open_object_store(f"memory://{name}").put_if_absent("key", b"1")
    assert open_object_store(f"memory://{name}").get("key").data == b"1"
    with pytest.raises(ObjectNotFoundError):
        open_object_store(f"memory://{name}2").get("key")
    MemoryObjectStore.forget(name)
    with pytest.raises(ObjectNotFoundError):
        open_object_store(f"memory://{name}").get("key")


def test_a_callers_buffer_is_copied() -> None:
    store = MemoryObjectStore(secrets.token_hex(6))
    buffer = bytearray(b"before")
    store.put_if_absent("key", buffer)
    buffer[:] = b"after!"
    assert store.get("key").data == b"before"


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_child_forked_amid_writes_can_go_on() -> None:
    store = MemoryObjectStore(secrets.token_hex(6))
    stop = threading.Event()

    def write() -> None:
        number = 0
        while not stop.is_set():
            store.put_if_absent(f"key/{number}", b"1")
            number += 1

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(20):
            child = os.fork()
            if not child:
                store.put_if_absent("child", b"1")
                os._exit(0 if store.get("child").data == b"1" else 1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        stop.set()
        writer.join()
    with pytest.raises(ObjectNotFoundError):
        store.get("child")
