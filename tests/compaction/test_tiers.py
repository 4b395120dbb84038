"""Size tiers: what compaction writes over a long history, and what the status shows of it."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

import pytest

from compactor.commands.status import read_status
from compactor.plan import FAN_OUT
from tests.helpers import Place, memory_place, thread

JOBS = 200
WRITE_BYTES = 20_000


@pytest.fixture
def place() -> Iterator[Place]:
    with memory_place(short_grace_s=0, long_grace_s=0) as place:
        yield place


def test_compaction_writes_each_byte_a_logarithmic_number_of_times(place: Place) -> None:
    """In runs, that is: a manifest holds what its head needs, and is written at every job."""
    rng = random.Random(0)
    saver = place.saver()
    run_bytes = 0
    for number in range(JOBS):
        name = thread(f"t{number:03d}", "", "1")
        saver.put_writes(name, [("data", rng.randbytes(WRITE_BYTES))], "task", "")
        place.compact()
        with place.store() as store:
            manifest, _ = store.reader.partition_manifest(0)
        generation = manifest.generation
        run_bytes += sum(run.size for run in manifest.runs if run.generation == generation)
    stored = sum(run.size for run in manifest.runs)
    assert stored < 1.4 * JOBS * WRITE_BYTES
    assert run_bytes <= stored * (1 + math.log(JOBS, FAN_OUT))
    levels = {run.level for run in manifest.runs}
    assert len(manifest.runs) <= (FAN_OUT - 1) * (max(levels) + 1)
    with place.store() as store:
        (part,) = read_status(store).partitions
    assert part.totals["jobs"] == JOBS
    assert part.totals["run_bytes_written"] == run_bytes
    assert part.totals["bytes_written"] > run_bytes
    assert part.rewrites == pytest.approx(run_bytes / stored, abs=0.01)
