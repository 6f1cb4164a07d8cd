"""A part of a plan whose process dies before each of its statements in turn: the letter and its item move together, or not."""

import threading
from itertools import count

import pytest

from lattice_tasks.store import plans as plan_rows
from lattice_tasks.tasks.apply import REST, Applier, How, Work
from lattice_tasks.tasks.plan_work import Discarding, Replaying
from tests.bulk import Runs, parked
from tests.stores import Crash, watched
from tests.working import opened, rows

pytestmark = pytest.mark.recycled


@pytest.mark.parametrize("verb", ["replay", "discard"])
def test_an_item_moves_with_its_letter_or_not_at_all(store_url: str, verb: str) -> None:
    """I7, for a crash at any statement; the last round does not crash, and moves both."""
    with opened(store_url) as lattice:
        runs = Runs(lattice)
        parked(lattice, runs.task, "q", 2)
        plan, owner = lattice.plans.make(verb=verb), "host:1:x"
        ((plan_id,),) = rows(lattice, "select id from lattice_plan")
        with lattice.engine.session() as session:
            assert plan_rows.claim(session, plan_id, owner, 1)
        names = {record.id: record.name for record in lattice.queues.list()}
        work: Work = Discarding(lattice._replays, keeps=True)
        if verb == "replay":
            work = Replaying(lattice._replays, plan.made, names, lambda ids: None)

        def moved() -> tuple[int, ...]:
            """Items that wait, letters at rest, invocations that rest parked, and those that are ready or discarded."""
            waiting = "select count(*) from lattice_plan_item where state = 0"
            at_rest = "select (select count(*) from lattice_tree_row) - count(*) from lattice_fifo_pin"
            resting = "select count(*) from lattice_invocation where state = 2"
            gone = "select (select count(*) from lattice_ready) + (select count(*) from lattice_bin)"
            return tuple(rows(lattice, sql)[0][0] for sql in (waiting, at_rest, resting, gone))

        crashes = 0
        for crash_before in count(1):
            assert moved() == (2, 2, 2, 0)
            applier = Applier(
                lattice.engine, plan_id, owner, plan.made, How(None, 10, (), 1.0), work, print, threading.Event()
            )
            with watched(lattice.engine, crash_before) as doomed:
                try:
                    applier._part(doomed, REST, 10)
                    break
                except Crash:
                    crashes += 1

        assert crashes >= 8
        assert moved() == (0, 0, 0, 2)
