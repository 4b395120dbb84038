"""The promises of `ObjectStore` as one pytest suite, for every backend.

A backend's test is a subclass that says how to open a store::

    class TestMyStore(ObjectStoreSuite):
        @pytest.fixture
        def store(self) -> Iterator[ObjectStore]:
            ...

The store must be empty at the start of each test. One that answers 409 to races, as AWS
does, is proved behind a `RetryingObjectStore`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from logstore.errors import ConditionFailedError, ObjectNotFoundError, UsageError
from logstore.objects.base import ObjectStore
from logstore.objects.probe import probe_conditional_writes

THREADS = 8
LARGE = 8 * 1024 * 1024
# A component of the longest allowed length, with every character of the alphabet.
LONGEST = ("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._=-" * 4)[:255]


class ObjectStoreSuite:
    """Proves a backend. Override `store`, and the numbers where a backend is slow."""

    many = 1100
    """Objects of the long listing: more than a page of S3."""
    rounds = 20
    """Races of each kind."""
    clock_slack = 2.0
    """Seconds by which the store's clock may differ from the test's; S3 tells whole ones."""

    @pytest.fixture
    def store(self) -> ObjectStore:
        """An empty store."""
        raise NotImplementedError("a subclass says how to open its store")

    def test_an_object_reads_back_whole(self, store: ObjectStore) -> None:
        """What was put is what is got, whatever its bytes."""
        data = bytes(range(256)) * 3 + b"\r\n\x00"
        stored = store.put_if_absent("a/b", data)
        found = store.get("a/b")
        assert (found.key, found.data, found.etag) == ("a/b", data, stored.etag)

    def test_a_large_object_reads_back_whole(self, store: ObjectStore) -> None:
        """8 MB come back, and so does any part of them."""
        data = bytes(range(251)) * (LARGE // 251)
        store.put_if_absent("large", data)
        assert store.get("large").data == data
        assert store.get_range("large", LARGE // 2, 1000) == data[LARGE // 2 :][:1000]

    def test_a_missing_key_is_told_as_such(self, store: ObjectStore) -> None:
        """Every read of a missing key raises `ObjectNotFoundError`."""
        store.put_if_absent("folder/there", b"1")
        for key in ("missing", "folder/missing", "folder", "there", "folder/there/below"):
            for read in _reads(store, key):
                with pytest.raises(ObjectNotFoundError, match=key):
                    read()

    @pytest.mark.parametrize(
        ("start", "length", "expected"),
        [
            (0, 10, b"0123456789"),
            (0, 1, b"0"),
            (9, 1, b"9"),
            (3, 4, b"3456"),
            (0, 11, b"0123456789"),
            (8, 100, b"89"),
            (10, 1, b""),
            (11, 5, b""),
            (1000, 1000, b""),
            (0, 0, b""),
            (5, 0, b""),
            (10, 0, b""),
        ],
    )
    def test_a_range_is_cut_at_the_end(
        self, store: ObjectStore, start: int, length: int, expected: bytes
    ) -> None:
        """A range gives the bytes that exist."""
        store.put_if_absent("digits", b"0123456789")
        assert store.get_range("digits", start, length) == expected

    def test_a_conditional_get_skips_the_known_version(self, store: ObjectStore) -> None:
        """Not modified is None; another version comes whole."""
        first = store.put_if_absent("key", b"one")
        assert store.get_if_changed("key", first.etag) is None
        second = store.compare_and_swap("key", b"two", first.etag)
        found = store.get_if_changed("key", first.etag)
        assert found is not None
        assert (found.data, found.etag) == (b"two", second.etag)
        assert store.get_if_changed("key", second.etag) is None

    def test_put_if_absent_never_overwrites(self, store: ObjectStore) -> None:
        """The second put fails, with equal bytes too, and changes nothing."""
        first = store.put_if_absent("key", b"one")
        for data in (b"two", b"one"):
            with pytest.raises(ConditionFailedError, match="key"):
                store.put_if_absent("key", data)
        found = store.get("key")
        assert (found.data, found.etag) == (b"one", first.etag)

    def test_compare_and_swap_replaces_the_named_version_only(self, store: ObjectStore) -> None:
        """A stale ETag loses; the current one wins."""
        first = store.put_if_absent("key", b"one")
        second = store.compare_and_swap("key", b"two", first.etag)
        with pytest.raises(ConditionFailedError, match="key"):
            store.compare_and_swap("key", b"three", first.etag)
        assert store.get("key").data == b"two"
        store.compare_and_swap("key", b"three", second.etag)
        assert store.get("key").data == b"three"

    def test_compare_and_swap_creates_only_what_is_missing(self, store: ObjectStore) -> None:
        """None means absent; an ETag means present."""
        created = store.compare_and_swap("key", b"one", None)
        with pytest.raises(ConditionFailedError):
            store.compare_and_swap("key", b"two", None)
        with pytest.raises(ConditionFailedError):
            store.compare_and_swap("missing", b"two", created.etag)
        with pytest.raises(ObjectNotFoundError):
            store.get("missing")
        assert store.get("key").data == b"one"

    def test_a_deleted_version_cannot_be_swapped(self, store: ObjectStore) -> None:
        """Compare-and-swap of a deleted object loses; it can be created anew."""
        stored = store.put_if_absent("key", b"one")
        store.delete(["key"])
        with pytest.raises(ConditionFailedError):
            store.compare_and_swap("key", b"two", stored.etag)
        store.put_if_absent("key", b"three")
        assert store.get("key").data == b"three"

    def test_each_version_has_its_own_etag(self, store: ObjectStore) -> None:
        """Different bytes under one key never share an ETag, even of equal length."""
        etags = [store.put_if_absent("key", b"000").etag]
        for serial in range(1, 30):
            etags.append(store.compare_and_swap("key", b"%03d" % serial, etags[-1]).etag)
        assert len(set(etags)) == 30
        assert store.get("key").etag == etags[-1]

    def test_one_of_many_creators_wins(self, store: ObjectStore) -> None:
        """Of eight threads that create one key, one gets through, and its bytes stay."""
        for number in range(self.rounds):
            key = f"race/{number}"
            bodies = [f"{number} by {thread}".encode() for thread in range(THREADS)]
            won = _race(partial(store.put_if_absent, key), bodies)
            assert len(won) == 1
            assert store.get(key).data == won[0]

    def test_one_of_many_swappers_wins(self, store: ObjectStore) -> None:
        """Of eight threads that replace one version, one gets through."""
        etag = store.put_if_absent("key", b"start").etag
        for number in range(self.rounds):
            bodies = [f"{number} by {thread}".encode() for thread in range(THREADS)]
            won = _race(partial(_swap, store, "key", etag), bodies)
            assert len(won) == 1
            found = store.get("key")
            assert found.data == won[0]
            etag = found.etag

    def test_no_increment_of_a_counter_is_lost(self, store: ObjectStore) -> None:
        """Eight threads that add to one counter by compare-and-swap lose nothing."""
        store.put_if_absent("counter", b"0 start")

        def add(thread: int) -> None:
            for serial in range(self.rounds // 4):
                _increment(store, "counter", f"{thread}/{serial}")

        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(add, range(THREADS)))
        total = int(store.get("counter").data.split()[0])
        assert total == THREADS * (self.rounds // 4)

    def test_an_empty_listing_is_one_page(self, store: ObjectStore) -> None:
        """So its date is known."""
        store.put_if_absent("other/key", b"1")
        pages = list(store.list("nothing/"))
        assert [page.objects for page in pages] == [()]
        assert abs(pages[0].date - time.time()) < self.clock_slack

    def test_a_long_listing_is_complete(self, store: ObjectStore) -> None:
        """More objects than a page holds, in several folders: each once, with its size."""
        sizes = {f"many/part={n % 3}/{n:05d}": n % 7 + 1 for n in range(self.many)}
        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(lambda key: store.put_if_absent(key, b"x" * sizes[key]), sizes))
        found = [entry for page in store.list("many/") for entry in page.objects]
        assert len(found) == len(sizes)
        assert {entry.key: entry.size for entry in found} == sizes
        one = [entry.key for page in store.list("many/part=1/") for entry in page.objects]
        assert sorted(one) == sorted(key for key in sizes if "part=1/" in key)
        store.delete(tuple(sizes))
        assert _keys(store, "") == set()

    def test_a_prefix_is_text_and_not_a_folder(self, store: ObjectStore) -> None:
        """Prefixes that are prefixes of each other list what begins with them."""
        keys = {"a-b/1", "a/1", "a/b/2", "ab/1", "ab/c/2", "abc", "b"}
        for key in keys:
            store.put_if_absent(key, key.encode())
        for prefix in ("", "a", "a/", "a-", "ab", "ab/", "ab/c", "abc", "a/b", "a/b/", "b", "c"):
            assert _keys(store, prefix) == {key for key in keys if key.startswith(prefix)}, prefix

    def test_a_listing_shows_what_existed_when_it_began(self, store: ObjectStore) -> None:
        """Writes and deletes of other objects, meanwhile, hide nothing."""
        keep = {f"log/keep-{n:03d}" for n in range(60)}
        fleeting = [f"log/fleeting-{n:03d}" for n in range(60)]
        for key in (*keep, *fleeting):
            store.put_if_absent(key, b"1")
        pages = store.list("log/")
        found = {entry.key for entry in next(pages).objects}
        store.delete(fleeting)
        store.put_if_absent("log/new", b"1")
        found |= {entry.key for page in pages for entry in page.objects}
        assert keep <= found
        assert _keys(store, "log/") == keep | {"log/new"}

    def test_a_write_is_listed_at_once(self, store: ObjectStore) -> None:
        """List after put, and list after delete, are up to date."""
        for number in range(self.rounds):
            store.put_if_absent(f"log/{number}", b"1")
            assert f"log/{number}" in _keys(store, "log/")
            store.delete([f"log/{number}"])
            assert _keys(store, "log/") == set()

    def test_deleting_twice_is_no_error(self, store: ObjectStore) -> None:
        """Missing keys count as deleted, alone and among others; no keys are no work."""
        for key in ("a/1", "a/2", "a/b/3"):
            store.put_if_absent(key, b"1")
        store.delete(["a/1", "a/missing", "a/b/3", "nowhere/at/all"])
        store.delete(["a/1"])
        store.delete([])
        assert _keys(store, "") == {"a/2"}
        assert store.get("a/2").data == b"1"

    def test_long_names_are_kept(self, store: ObjectStore) -> None:
        """Components of 255 bytes, in every position, are distinct to the last byte."""
        keys = {f"{LONGEST}/{LONGEST}", f"{LONGEST}/{LONGEST[:-1]}", f"x/{LONGEST}/y"}
        for key in keys:
            store.put_if_absent(key, key.encode())
        assert all(store.get(key).data == key.encode() for key in keys)
        assert _keys(store, "") == keys
        store.delete(sorted(keys))
        assert _keys(store, "") == set()

    def test_times_are_the_stores_clock(self, store: ObjectStore) -> None:
        """Dates and times of modification lie around now, and agree with each other."""
        before = time.time() - self.clock_slack
        stored = store.put_if_absent("key", b"1")
        found = store.get("key")
        (page,) = store.list("key")
        after = time.time() + self.clock_slack
        times = (stored.date, found.date, found.modified, page.date, page.objects[0].modified)
        assert all(before <= moment <= after for moment in times), times
        assert page.objects[0].modified == found.modified

    def test_a_swap_counts_as_a_modification(self, store: ObjectStore) -> None:
        """The time of modification is that of the version."""
        stored = store.put_if_absent("key", b"1")
        first = store.get("key").modified
        time.sleep(1.1)
        store.compare_and_swap("key", b"2", stored.etag)
        assert store.get("key").modified > first

    def test_the_arguments_are_checked_before_anything_is_sent(self, store: ObjectStore) -> None:
        """Empty bodies, keys outside the alphabet and negative ranges are refused."""
        with pytest.raises(UsageError, match="empty"):
            store.put_if_absent("key", b"")
        with pytest.raises(UsageError, match="empty"):
            store.compare_and_swap("key", b"", "etag")
        for key in ("", "/a", "a/", "a//b", "../a", "a/./b", "a b", "é", "a\n", "x" * 256):
            for read in _reads(store, key):
                with pytest.raises(UsageError, match="key"):
                    read()
            with pytest.raises(UsageError, match="key"):
                store.put_if_absent(key, b"1")
            with pytest.raises(UsageError, match="key"):
                store.delete([key])
        for prefix in ("/a", "a//", "../", "a b", "x" * 256):
            with pytest.raises(UsageError):
                list(store.list(prefix))
        with pytest.raises(UsageError, match="0 or more"):
            store.get_range("key", -1, 1)
        assert _keys(store, "") == set()

    def test_the_probe_accepts_the_store(self, store: ObjectStore) -> None:
        """It enforces conditional writes, and the probe leaves nothing behind."""
        probe_conditional_writes(store, "probes")
        assert _keys(store, "") == set()

    def test_the_uri_names_the_scheme(self, store: ObjectStore) -> None:
        """A store tells what it was opened with."""
        assert store.uri.startswith(f"{store.scheme}://")


def _reads(store: ObjectStore, key: str) -> tuple[Callable[[], object], ...]:
    return (
        lambda: store.get(key),
        lambda: store.get_range(key, 0, 1),
        lambda: store.get_range(key, 0, 0),
        lambda: store.get_if_changed(key, '"0123456789abcdef0123456789abcdef"'),
    )


def _keys(store: ObjectStore, prefix: str) -> set[str]:
    return {entry.key for page in store.list(prefix) for entry in page.objects}


def _race(write: Callable[[bytes], object], bodies: Iterable[bytes]) -> list[bytes]:
    def attempt(body: bytes) -> bytes | None:
        try:
            write(body)
        except ConditionFailedError:
            return None
        return body

    with ThreadPoolExecutor(THREADS) as pool:
        return [body for body in pool.map(attempt, bodies) if body is not None]


def _swap(store: ObjectStore, key: str, expected: str, data: bytes) -> object:
    return store.compare_and_swap(key, data, expected)


def _increment(store: ObjectStore, key: str, by: str) -> None:
    while True:
        found = store.get(key)
        value = int(found.data.split()[0])
        try:
            store.compare_and_swap(key, f"{value + 1} {by}".encode(), found.etag)
        except ConditionFailedError:
            continue
        return
