"""Retention: which threads, and which checkpoints of a thread, are not kept for ever.

A rule deletes whole threads that nobody wrote to for a time, or hides all but the newest
checkpoints of each namespace of a thread. Both are what a saver does on request: tombstones in
the log, which the next compaction carries out. A thread is looked at once more right before it is
deleted; a put between that look and the tombstone goes with its thread, as with any delete.
"""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from logstore.errors import InvalidOptionError, LogStoreError
from logstore.index import StoreIndex
from logstore.maintenance import Maintenance
from logstore.records import WRITTEN, Kind
from logstore.store import LogStore

_COLUMNS = ["thread_id", "checkpoint_ns", "checkpoint_id", "kind", "arrived"]
INTERVAL_S = 3600.0
"""A service looks for what retention does not keep so often."""
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
_KEYS = {"max_age", "newest", "threads"}
_THREAD_KEYS = {"prefix", "max_age", "newest"}


@dataclass(frozen=True, slots=True)
class RetentionRule:
    """What is kept of the threads whose id starts with a prefix."""

    prefix: str = ""
    max_age_s: float | None = None
    """A thread that was last written to longer ago than this is deleted."""
    newest: int | None = None
    """So many checkpoints of each namespace are kept."""


@dataclass(frozen=True, slots=True)
class Retired:
    """What a rule does to a thread."""

    thread_id: str
    action: str
    """`delete` or `prune`."""
    checkpoints: int
    """How many checkpoints are shown no more."""
    idle_s: float
    """Seconds since the thread was last written to."""


class RetentionPolicy:
    """The rules of an operator; of several that match a thread the longest prefix counts."""

    def __init__(self, rules: Sequence[RetentionRule] = ()) -> None:
        """Apply `rules`; without one everything is kept."""
        self._rules = sorted(rules, key=lambda rule: -len(rule.prefix))

    def __bool__(self) -> bool:
        """Whether there is anything to do."""
        return bool(self._rules)

    def rule_of(self, thread_id: str) -> RetentionRule | None:
        """The rule of a thread."""
        return next((rule for rule in self._rules if thread_id.startswith(rule.prefix)), None)

    @classmethod
    def parse(cls, doc: Mapping[str, Any], where: str) -> RetentionPolicy:
        """Read a `[retention]` table.

        Args:
            doc: the table.
            where: the file, for messages.

        Raises:
            InvalidOptionError: it has a mistake.
        """
        only_keys(doc, _KEYS, f"{where}, [retention]")
        threads = doc.get("threads", [])
        if not isinstance(threads, list):
            raise InvalidOptionError(f"{where}: write prefixes as [[retention.threads]] tables")
        rules = [_rule({k: v for k, v in doc.items() if k != "threads"}, f"{where}, [retention]")]
        for number, table in enumerate(threads, 1):
            name = f"{where}, [[retention.threads]] number {number}"
            only_keys(table, _THREAD_KEYS, name)
            if not table.get("prefix"):
                raise InvalidOptionError(f'{name} needs a prefix = "…"')
            rules.append(_rule(table, name))
        return cls([rule for rule in rules if rule.prefix or rule != RetentionRule()])


def apply_retention(
    store: LogStore,
    policy: RetentionPolicy,
    partitions: Collection[int] | None = None,
    *,
    dry_run: bool = False,
) -> list[Retired]:
    """Delete and prune what the policy does not keep.

    Args:
        store: an open store.
        policy: the rules.
        partitions: only these; all by default.
        dry_run: only say what would be done.

    Raises:
        LogStoreError: a thread cannot be read or its tombstone not be stored. It is raised when
            all others are through.
    """
    if not policy:
        return []
    settings = store.settings()
    wanted = range(settings.partitions if settings else 0) if partitions is None else partitions
    maintenance = Maintenance(store)
    found: list[Retired] = []
    errors: list[LogStoreError] = []
    for partition in wanted:
        try:
            candidates = list(_candidates(store, policy, partition))
        except LogStoreError as error:
            errors.append(error)
            continue
        for candidate in candidates:
            try:
                retired = _retire(maintenance, candidate, dry_run)
            except LogStoreError as error:
                errors.append(error)
                continue
            if retired is not None:
                found.append(retired)
    if errors:
        raise errors[0]
    return found


class _Candidate(NamedTuple):
    thread_id: str
    rule: RetentionRule
    now: float
    """The store's clock: seconds since the epoch."""
    idle_s: float

    @property
    def is_old(self) -> bool:
        return self.rule.max_age_s is not None and self.idle_s > self.rule.max_age_s


def _candidates(store: LogStore, policy: RetentionPolicy, partition: int) -> Iterator[_Candidate]:
    """The threads that a rule may concern, from index columns alone."""
    listing, tables = StoreIndex(store).tables(partition, _COLUMNS)
    if not tables:
        return
    table = pa.concat_tables(tables)
    own = table.filter(pc.is_in(table["kind"], pa.array(WRITTEN)))
    last = own.group_by("thread_id").aggregate([("arrived", "max")])
    checkpoints = own.filter(pc.equal(own["kind"], Kind.CHECKPOINT.value))
    counted = checkpoints.group_by(["thread_id", "checkpoint_ns"]).aggregate(
        [("checkpoint_id", "count_distinct")]
    )
    longest = counted.group_by("thread_id").aggregate([("checkpoint_id_count_distinct", "max")])
    most = dict(zip(*(column.to_pylist() for column in longest.columns), strict=True))
    arrived = last["arrived_max"].cast(pa.int64()).to_pylist()
    for thread_id, at in zip(last["thread_id"].to_pylist(), arrived, strict=True):
        rule = policy.rule_of(thread_id)
        if rule is None:
            continue
        found = _Candidate(thread_id, rule, listing.date, listing.date - at / 1e6)
        if found.is_old or (rule.newest is not None and most.get(thread_id, 0) > rule.newest):
            yield found


def _retire(maintenance: Maintenance, found: _Candidate, dry_run: bool) -> Retired | None:
    if found.is_old:
        before = found.now - (found.rule.max_age_s or 0.0)
        gone = maintenance.delete_idle(found.thread_id, before, dry_run=dry_run)
        return Retired(found.thread_id, "delete", gone, found.idle_s) if gone else None
    newest = found.rule.newest or 1
    gone = maintenance.keep_newest(found.thread_id, newest, dry_run=dry_run)
    return Retired(found.thread_id, "prune", gone, found.idle_s) if gone else None


class HourlyRetention:
    """Retention for a service, whose jobs come much oftener than it is worth looking."""

    def __init__(self, store: LogStore, policy: RetentionPolicy) -> None:
        """Apply `policy` to `store`."""
        self._store = store
        self._policy = policy
        self._next = 0.0

    def apply_if_due(self, partitions: Collection[int] | None = None) -> list[Retired]:
        """Apply the policy if that was an hour ago, whether it went well or not.

        Raises:
            LogStoreError: a thread cannot be read or its tombstone not be stored.
        """
        if not self._policy or time.monotonic() < self._next:
            return []
        self._next = time.monotonic() + INTERVAL_S
        return apply_retention(self._store, self._policy, partitions)


def to_dicts(retired: Sequence[Retired]) -> list[dict[str, Any]]:
    """What was done, as plain data."""
    return [asdict(one) for one in retired]


def _rule(doc: Mapping[str, Any], where: str) -> RetentionRule:
    newest = doc.get("newest")
    if newest is not None and (
        isinstance(newest, bool) or not isinstance(newest, int) or newest < 1
    ):
        raise InvalidOptionError(f"{where}: newest is a whole number of at least 1, not {newest!r}")
    age = doc.get("max_age")
    return RetentionRule(
        str(doc.get("prefix", "")), None if age is None else _seconds(age, where), newest
    )


def _seconds(age: Any, where: str) -> float:
    match = (
        re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([smhdw])\s*", age) if isinstance(age, str) else None
    )
    if match is None or not float(match[1]):
        raise InvalidOptionError(
            f'{where}: max_age is a number and one of s, m, h, d, w, such as "90d", not {age!r}'
        )
    return float(match[1]) * _UNITS[match[2]]


def only_keys(doc: Mapping[str, Any], known: Collection[str], where: str) -> None:
    """Refuse a table with a key that means nothing, which is most often misspelt.

    Raises:
        InvalidOptionError: it has one.
    """
    unknown = sorted(doc.keys() - set(known))
    if unknown:
        raise InvalidOptionError(
            f"{where} has the unknown key {unknown[0]!r}; known are {', '.join(sorted(known))}"
        )
