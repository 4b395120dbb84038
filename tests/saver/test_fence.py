"""The optional fence: two workers that go on from one checkpoint notice each other."""

from __future__ import annotations

import threading

import pytest
from langgraph.channels.delta import DeltaChannel

from logstore import LogStoreSaver
from logstore.errors import HeadMovedError
from tests.helpers import Place, Script, append, both, linear_graph, thread


def heads(saver: LogStoreSaver) -> list[str]:
    return [c.config["configurable"]["checkpoint_id"] for c in saver.list(thread())]


@pytest.mark.parametrize("compacted", [False, True])
def test_a_put_below_a_checkpoint_that_was_gone_on_from_is_refused(
    place: Place, compacted: bool
) -> None:
    with place.fresh(fence=True) as first, place.fresh(fence=True) as second:
        one = Script([first])
        chain = one.chain(3)
        two = Script([second], _serial=50)
        two._known.update(one._known)
        taken = one.put(chain[-1])
        if compacted:
            place.compact()
        with pytest.raises(HeadMovedError, match=f"{taken}.*Nothing was stored"):
            two.put(chain[-1])
        with pytest.raises(HeadMovedError):
            two.put(chain[0])
        with pytest.raises(HeadMovedError):
            two.put()
        assert heads(first) == [taken, *reversed(chain)]
        two._known.update(one._known)
        assert two.put(taken) == heads(first)[0]


def test_a_second_beginning_is_refused_though_the_first_was_merged_long_ago(place: Place) -> None:
    with place.fresh() as first, place.fresh(fence=True) as second:
        line = Script([first])
        last = line.chain(5)[-1]
        place.compact(channels={"d": DeltaChannel(append, list, snapshot_frequency=1)})
        line.put(last)
        with pytest.raises(HeadMovedError):
            Script([second], _serial=50).put()


def test_the_same_put_may_be_repeated_and_a_fork_may_be_put_anywhere(place: Place) -> None:
    with place.fresh(fence=True) as saver:
        script = Script([saver])
        chain = script.chain(3)
        script.again(chain[-1])
        script.again(chain[0])
        fork = script.put(chain[0], source="fork")
        assert heads(saver) == [fork, *reversed(chain)]


def test_without_a_fence_both_branches_stay_readable(place: Place) -> None:
    with place.fresh() as saver:
        script = Script([saver])
        chain = script.chain(2)
        branches = [script.put(chain[-1]), script.put(chain[-1])]
        assert heads(saver)[:2] == branches[::-1]


def test_of_many_workers_that_race_at_most_one_goes_on(place: Place) -> None:
    workers = 6
    savers = [place.saver(fence=True) for _ in range(workers)]
    root = Script(savers[:1]).put()
    outcomes: list[str | None] = [None] * workers
    barrier = threading.Barrier(workers)

    def work(number: int) -> None:
        script = Script([savers[number]], _serial=100 + number)
        script._known[root] = ({}, 0, 0)
        barrier.wait()
        try:
            outcomes[number] = script.put(root)
        except HeadMovedError:
            outcomes[number] = None

    threads = [threading.Thread(target=work, args=(number,)) for number in range(workers)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    won = [outcome for outcome in outcomes if outcome]
    assert len(won) <= 1
    for after in (lambda: None, lambda: place.compact()):
        after()
        with place.fresh() as reader:
            assert heads(reader) == [*won, root]


async def test_a_graph_with_a_fence_runs_and_forks_as_usual(place: Place) -> None:
    with place.fresh(fence=True) as saver:
        graph = linear_graph(7)(saver)
        graph.invoke(both("a"), thread())
        await graph.ainvoke(both("b"), thread())
        old = list(graph.get_state_history(thread()))[3]
        forked = graph.invoke(None, old.config)
        assert forked["delta"] == forked["plain"]
        updated = graph.update_state(graph.get_state(thread()).config, both("c"), as_node="work")
        assert graph.get_state(updated).values["plain"][-1] == "c"
