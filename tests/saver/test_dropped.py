"""Dropping what is hidden, on every backend: the servers' clocks and conditional writes decide."""

from __future__ import annotations

import time

import pytest
from langgraph.channels.delta import DeltaChannel

from compactor.folding.channels import default_serde, table_of
from compactor.verifying.verify import verify
from tests.helpers import Place, Script, append, rebuilt, thread
from tests.saver.conftest import BACKENDS
from tests.saver.test_prune import ids

D = {"d": DeltaChannel(append, list, snapshot_frequency=1000)}
TICK_S = 1.1
"""A server's `Last-Modified` has whole seconds."""


def jobs(place: Place, count: int) -> int:
    """Jobs that may drop at once; how many rows went."""
    dropped = 0
    for _ in range(count):
        dropped += place.compact(channels=D, hidden_grace_s=0).total("rows_dropped")
        time.sleep(TICK_S if place.backend else 0)
    return dropped


@pytest.mark.parametrize("any_place", BACKENDS[1:], indirect=True)
def test_what_is_left_reads_as_before_on_every_backend(any_place: Place) -> None:
    any_place.create(partitions=1, short_grace_s=0, long_grace_s=0)
    with any_place.fresh() as saver:
        script = Script([saver])
        line = script.chain(9)
        fork = script.put(line[7])
        script.write(fork, "x" * 200_000)
        last = script.put(fork)
        before = {at: rebuilt(saver, thread("t", "", at), D) for at in (fork, last)}
        saver.prune(["t"], newest=2)
    assert jobs(any_place, 2) >= len(line)
    with any_place.fresh() as saver:
        assert ids(saver) == [last, fork]
        assert {at: rebuilt(saver, thread("t", "", at), D) for at in before} == before
        script.savers = [saver]
        script.write(last, "on")
        script.put(last)
        assert rebuilt(saver, thread(), D)["d"] == [*before[last]["d"], "on"]
    assert jobs(any_place, 1) == 0
    with any_place.store() as store:
        found = verify(store, table_of(channels=D), default_serde())
    assert not found.findings, found.findings
    checkpoints = {r.checkpoint_id for r in any_place.run_records() if r.kind == "checkpoint"}
    assert not checkpoints & set(line)
