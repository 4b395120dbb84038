"""Letting requests to a store fail by plan, in every way that a request can fail."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto

from logstore.errors import (
    AccessDeniedError,
    ConditionFailedError,
    ObjectNotFoundError,
    ObjectStoreError,
    OutcomeUnknownError,
    UnavailableError,
)
from logstore.objects.base import ObjectStore
from logstore.testing.wrapped import Predicate, T, WrappedStore

_CONDITIONAL_WRITES = frozenset({"put_if_absent", "compare_and_swap"})
_WRITES = _CONDITIONAL_WRITES | {"delete"}


class Fault(Enum):
    """What happens to a request that a `FaultyStore` lets fail."""

    ERROR = auto()
    """It is not carried out, and the caller cannot tell: `OutcomeUnknownError` for a
    conditional write, `UnavailableError` for everything else."""
    REFUSED = auto()
    """It is not carried out, and the caller can tell: `UnavailableError`."""
    DROPPED_ANSWER = auto()
    """It is carried out, and its answer is lost; errors as for `ERROR`."""
    LATE = auto()
    """Its answer is lost, and a write is only carried out by `FaultyStore.land`."""
    NOT_FOUND = auto()
    """`ObjectNotFoundError`, not carried out."""
    ACCESS_DENIED = auto()
    """`AccessDeniedError`, not carried out."""
    LOST_RACE = auto()
    """`ConditionFailedError`, not carried out."""


_CERTAIN_ERRORS: dict[Fault, type[ObjectStoreError]] = {
    Fault.REFUSED: UnavailableError,
    Fault.NOT_FOUND: ObjectNotFoundError,
    Fault.ACCESS_DENIED: AccessDeniedError,
    Fault.LOST_RACE: ConditionFailedError,
}


@dataclass(slots=True)
class _Plan:
    matches: Predicate
    fault: Fault
    skip: int
    times: float


class FaultyStore(WrappedStore):
    """Lets requests fail as planned.

    Args:
        inner: the store that answers.
    """

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self._lock = threading.Lock()
        self._plans: tuple[_Plan, ...] = ()
        self._late: tuple[Callable[[], object], ...] = ()
        self._failed = 0

    @property
    def failed(self) -> int:
        """How many requests were made to fail so far."""
        return self._failed

    def fail_at(self, k: int, fault: Fault, *, times: int | None = 1) -> None:
        """Let the k-th request from now on fail, the first being 1.

        Args:
            k: which request.
            fault: what happens to it.
            times: how many requests fail in a row; None for all that follow.
        """
        self._plan(_Plan(lambda method, key: True, fault, k - 1, _times(times)))

    def fail_when(self, matches: Predicate, fault: Fault, *, times: int | None = None) -> None:
        """Let the requests that a predicate chooses fail.

        Args:
            matches: chooses by method and key.
            fault: what happens to them.
            times: how many of them fail; None for all.
        """
        self._plan(_Plan(matches, fault, 0, _times(times)))

    def heal(self) -> None:
        """Drop all plans. Late writes can still land."""
        with self._lock:
            self._plans = ()

    def land(self) -> None:
        """Carry out the late writes, in order; one that loses now is dropped."""
        with self._lock:
            late, self._late = self._late, ()
        for write in late:
            try:
                write()
            except ConditionFailedError:
                continue

    def around(self, method: str, key: str, sent: int, answer: Callable[[], T]) -> T:
        """Carry out one request, or let it fail."""
        if method in _WRITES:
            fault = self._next_fault(method, key)
            return answer() if fault is None else self._fail(fault, method, key, answer)
        # A read that fails afterwards looks like one that was never carried out, and the
        # end of a listing is known to be no request.
        result = answer()
        if result is None and method == "list":
            return result
        fault = self._next_fault(method, key)
        return result if fault is None else self._fail(fault, method, key, lambda: result)

    def _fail(self, fault: Fault, method: str, key: str, answer: Callable[[], T]) -> T:
        text = f"{self.uri}: {method} of {key!r} was made to fail ({fault.name.lower()})"
        if fault in _CERTAIN_ERRORS:
            raise _CERTAIN_ERRORS[fault](text)
        if fault is Fault.DROPPED_ANSWER:
            answer()
        if fault is Fault.LATE:
            with self._lock:
                self._late += (answer,)
        raise (OutcomeUnknownError if method in _CONDITIONAL_WRITES else UnavailableError)(text)

    def _plan(self, plan: _Plan) -> None:
        with self._lock:
            self._plans += (plan,)

    def _next_fault(self, method: str, key: str) -> Fault | None:
        with self._lock:
            fault = None
            for plan in self._plans:
                if not plan.times or not plan.matches(method, key):
                    continue
                if plan.skip:
                    plan.skip -= 1
                elif fault is None:
                    plan.times -= 1
                    fault = plan.fault
            self._failed += fault is not None
            return fault


def _times(times: int | None) -> float:
    return float("inf") if times is None else times
