"""Kept tables of a store whose values are encrypted tell what there is, and nothing of what it says."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import pyarrow.parquet as pq
import pytest
import zstandard
from langchain_core.messages import AIMessage, ToolMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.serde.base import CipherProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer

from compactor.folding.channels import table_of
from compactor.verifying.verify import verify
from logstore import analytics
from logstore.channels import merge_message_writes
from logstore.manifest import KEPT
from tests.analytics.test_messages import ask, play
from tests.helpers import Place, memory_place

SECRETS = ("question to t", "what the model said", "what the tool found", "secret-argument")
CALL = {"name": "search", "args": {"q": "secret-argument"}, "id": "c1", "type": "tool_call"}
SAID = [
    AIMessage("what the model said", id="a1", tool_calls=[CALL]),
    ToolMessage("what the tool found", tool_call_id="c1", id="r1"),
    AIMessage("bye", id="a2"),
]
CHANNELS = {"messages": DeltaChannel(merge_message_writes, list, snapshot_frequency=2)}
ZSTD_FRAME = b"\x28\xb5\x2f\xfd"


class Xor(CipherProtocol):
    """A cipher that leaves no word as it is."""

    def encrypt(self, plaintext: bytes) -> tuple[str, bytes]:
        return "xor", bytes(byte ^ 0x5A for byte in plaintext)

    def decrypt(self, ciphername: str, ciphertext: bytes) -> bytes:
        return self.encrypt(ciphertext)[1]


SERDE = EncryptedSerializer(Xor())


@pytest.fixture(params=["delta", "full"])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    """Some threads of an agent whose saver encrypts."""
    with memory_place() as found:
        for thread_id in ("t1", "t2", "t3"):
            ask(play(request.param, found.saver(serde=SERDE), SAID), thread_id, left=len(SAID))
        yield found


def rows_of(place: Place) -> dict[str, list[dict[str, Any]]]:
    """The tables' rows by each way to them, which give the same."""
    found: dict[str, list[dict[str, Any]]] = {}
    with analytics.open(place.uri) as snapshot, snapshot.duckdb() as connection:
        for name in KEPT:
            rows = snapshot.scan(name).read_all().to_pylist()
            asked = connection.sql(f"SELECT * FROM {name}").to_arrow_table().to_pylist()
            assert sorted(map(repr, rows)) == sorted(map(repr, asked))
            found[name] = sorted(rows, key=repr)
    return found


def contents(place: Place) -> Iterator[tuple[str, bytes]]:
    """What all objects hold, decompressed, as far as the store itself can read it."""
    with place.store() as store:
        for key in place.keys():
            data = store.objects.get(key).data
            if key.endswith(".parquet"):
                for row in pq.read_table(io.BytesIO(data)).to_pylist():
                    yield from ((key, v) for v in row.values() if isinstance(v, bytes))
                    yield from ((key, v.encode()) for v in row.values() if isinstance(v, str))
            elif (start := data.find(ZSTD_FRAME)) >= 0:
                yield key, zstandard.ZstdDecompressor().decompressobj().decompress(data[start:])
            else:
                yield key, data


@pytest.mark.parametrize("keyed", [True, False], ids=["with its key", "without its key"])
def test_kept_tables_of_an_encrypted_store_say_what_decoding_says_and_hold_no_plain_text(
    place: Place, keyed: bool
) -> None:
    how: dict[str, Any] = {"serde": SERDE, "channels": CHANNELS} if keyed else {}
    place.compact(**how)
    without = rows_of(place)
    place.compact(keep=KEPT, **how)
    with analytics.open(place.uri) as snapshot:
        (partition,) = snapshot.partitions
        assert all(len(partition.kept.current(name)) == 3 for name in KEPT)
    assert rows_of(place) == without
    messages = without["messages"]
    assert {row["thread_id"] for row in messages} == {"t1", "t2", "t3"}
    assert {(row["role"], row["text"], row["message_id"]) for row in messages} == {
        ("encrypted", None, None)
    }
    assert without["tool_calls"] == []
    kinds = set()
    for key, content in contents(place):
        kinds.add(key.split("/")[0])
        assert not [secret for secret in SECRETS if secret.encode() in content], key
    assert {"tables", "runs", "manifests", "snapshots"} <= kinds
    with place.store() as store:
        assert not verify(store, table_of(channels=CHANNELS if keyed else None), SERDE).findings


def test_the_words_would_be_found_where_nothing_is_encrypted() -> None:
    with memory_place() as place:
        ask(play("delta", place.saver(), SAID), "t1", left=len(SAID))
        place.compact(keep=KEPT)
        found = {
            secret for secret in SECRETS for _, held in contents(place) if secret.encode() in held
        }
    assert found == set(SECRETS)
