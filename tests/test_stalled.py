"""A queue whose shelf refuses: what fails for good is held, nothing more is handed out, until there is room; both engines."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from lattice_tasks import Lattice
from lattice_tasks.admin import main
from lattice_tasks.dead_letters.parking import ShelfSpec
from lattice_tasks.errors import InvalidInput
from lattice_tasks.maintenance import Maintenance
from lattice_tasks.tasks.settle import Kind
from tests.claimers import Claimer, outcome
from tests.reasons import codes, facts
from tests.working import change, heard, opened, rows, states, until, until_state, working

pytestmark = pytest.mark.recycled
QUEUE = "orders"


class Stalled:
    """A queue with a shelf of two that refuses; its task fails as long as `is_broken`."""

    def __init__(self, lattice: Lattice) -> None:
        self.lattice = lattice
        self.is_broken = True
        self.ran: list[int] = []
        self.shelf = lattice.dead_letters(QUEUE)

        @lattice.task(queue=QUEUE, max_retries=0)
        def work(number: int) -> int:
            self.ran.append(number)
            if self.is_broken:
                raise ValueError(number)
            return number

        self.work = work

    def stall(self) -> list[Any]:
        """Two are parked, the third is held; then four more line up."""
        with working(self.lattice, threads=1):
            jobs = [until_state(self.work.submit(number), "parked", "held") for number in range(3)]
            assert [job.state for job in jobs] == ["parked", "parked", "held"]
        return [self.work.submit(number) for number in range(3, 7)]

    def run_maintenance(self) -> None:
        with self.lattice.engine.session() as session:
            Maintenance(self.lattice.settings, self.lattice.telemetry, lambda _ids: None).run_due(session)


def declared(lattice: Lattice) -> Stalled:
    if not any(queue.name == QUEUE for queue in lattice.queues.list()):
        lattice.queues.add(QUEUE, dlq_capacity=2, dlq_on_full="refuse")
    return Stalled(lattice)


@pytest.fixture
def stalled(store_url: str) -> Iterator[Stalled]:
    with opened(store_url, heartbeat_ms=100, lease_ms=5_000) as lattice:
        yield declared(lattice)


def test_a_rule_that_is_none_is_refused(stalled: Stalled) -> None:
    with pytest.raises(InvalidInput, match="evict or refuse"):
        stalled.lattice.queues.add("other", dlq_on_full="drop")


def test_a_full_shelf_that_refuses_stops_its_queue(stalled: Stalled) -> None:
    """C04: nothing is evicted, nothing lost, nothing handed out, by any worker, also after a restart of all."""
    events = heard(stalled.lattice)
    waiting = stalled.stall()

    for _ in range(2):
        claimer = Claimer(stalled.lattice, QUEUE)
        assert claimer.claim(10) == []
        claimer.close()
    with opened(stalled.lattice.settings.store_url) as restarted:
        again = declared(restarted)
        other = again.lattice.task(queue="other")(lambda: None)
        with working(restarted):
            until_state(other.submit(), "succeeded")
        assert (again.ran, states(waiting)) == ([], ["waiting"] * 4)

    depth = stalled.lattice.queues.depth(QUEUE)
    assert (depth.parked, depth.held, depth.waiting) == (2, 1, 4)
    assert (len(events.of("queue.stalled")), len(events.of("task.held")), events.of("dead_letter.evicted")) == (
        1,
        1,
        [],
    )


def test_when_there_is_room_what_was_held_is_parked_and_the_queue_goes_on(stalled: Stalled) -> None:
    """By itself, in order, with the workers running; then the rest fails, is held, and stalls it again."""
    waiting = stalled.stall()
    held = stalled.lattice.queues.depth(QUEUE).held
    events = heard(stalled.lattice)
    stalled.is_broken = False

    with working(stalled.lattice, threads=1):
        stalled.shelf.discard(1)
        for job in waiting:
            until_state(job, "succeeded")

    assert (held, [one.entry_id for one in stalled.shelf.list()]) == (1, [2, 3])
    assert stalled.shelf.list()[1].error == "ValueError: 2"
    assert stalled.ran == list(range(7))
    assert [fields["entry_id"] for fields in events.of("dead_letter.enqueued")] == [3]
    assert events.of("queue.unstalled") == [{"queue": QUEUE}]


def test_a_replay_goes_through_a_stalled_queue_and_makes_room(stalled: Stalled) -> None:
    """The one way out that loses nothing must not be behind those that wait."""
    waiting = stalled.stall()
    change(
        stalled.lattice, "update lattice_invocation set seq = seq + 1000 where seq in (select seq from lattice_ready)"
    )
    change(stalled.lattice, "update lattice_ready set seq = seq + 1000")
    stalled.is_broken = False

    with working(stalled.lattice, threads=2):
        found = stalled.shelf.replay(2, wait=15)
        assert found.state == "succeeded"
        for job in waiting:
            until_state(job, "succeeded")

    assert stalled.ran[3] == 1
    assert stalled.lattice.queues.depth(QUEUE).held == 0


def test_a_replay_that_fails_leaves_the_queue_stalled(stalled: Stalled) -> None:
    waiting = stalled.stall()

    with working(stalled.lattice, threads=1):
        assert stalled.shelf.replay(1, wait=15).state == "parked"

    assert (states(waiting), stalled.ran) == (["waiting"] * 4, [0, 1, 2, 0])


def test_held_ones_are_parked_in_their_order_and_none_overtakes_them(stalled: Stalled) -> None:
    """One that ran already when the queue stalled lines up behind what is held, though there is room by then."""
    stalled.stall()
    change(stalled.lattice, "update lattice_queue set dlq_on_full = 'evict'")
    late = Claimer(stalled.lattice, QUEUE)
    claimed = late.claim(2)
    change(stalled.lattice, "update lattice_queue set dlq_on_full = 'refuse'")
    stalled.shelf.discard(1)
    stalled.shelf.discard(2)
    late.shelf = ShelfSpec(late.queue.id, 2, "refuse")
    late.settle(*((one, outcome(Kind.PARK)) for one in claimed))
    assert stalled.lattice.queues.depth(QUEUE).held == 3

    stalled.run_maintenance()
    stalled.run_maintenance()

    assert [one.error for one in stalled.shelf.list()] == ["ValueError: 2", "no"]
    assert stalled.lattice.queues.depth(QUEUE).held == 1
    stalled.shelf.discard(3)
    stalled.run_maintenance()
    assert [one.seq for one in stalled.shelf.list()] == sorted(one.seq for one in claimed)
    late.close()


def test_a_hundred_held_ones_do_not_take_minutes(stalled: Stalled) -> None:
    """A page that was full is followed by the next one soon."""
    jobs = stalled.work.submit_many([(number,) for number in range(250)])
    change(stalled.lattice, "delete from lattice_ready")
    change(stalled.lattice, "update lattice_invocation set state = 3, reason = 'unknown', attempt = 1, error = 'x'")
    state = rows(stalled.lattice, "select distinct state from lattice_invocation")
    change(stalled.lattice, "insert into lattice_held (queue_id, seq) select queue_id, seq from lattice_invocation")
    change(stalled.lattice, "update lattice_queue set dlq_capacity = 1000")
    assert state == [(3,)]

    with working(stalled.lattice, threads=1):
        until(lambda: stalled.shelf.count() == 250, patience_s=12)

    assert [one.task_id for one in stalled.shelf.list()] == [job.id for job in jobs]


def test_an_evicting_shelf_never_stalls_its_queue(stalled: Stalled) -> None:
    """It holds what fails while all its letters are being replayed, and the replays must run."""
    stalled.stall()
    change(stalled.lattice, "update lattice_queue set dlq_on_full = 'evict'")
    claimer = Claimer(stalled.lattice, QUEUE)

    assert len(claimer.claim(10)) == 4
    claimer.close()


def test_why_names_it_to_what_waits_and_not_to_what_is_replayed(stalled: Stalled) -> None:
    waiting = stalled.stall()
    letter = stalled.shelf.list()[0]
    stalled.shelf.replay(letter.entry_id)

    assert facts(stalled.lattice, waiting[0], "queue_stalled") == {"queue": QUEUE, "parked": 2, "held": 1}
    assert "queue_stalled" not in codes(stalled.lattice, stalled.lattice.job(letter.task_id))


def test_the_command_line_says_that_it_is_stalled(store_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """`queues add`, `show`, `doctor` and `why`."""
    at_store = ["--store-url", store_url, "-o", "json"]

    def said(*arguments: str) -> Any:
        assert main([*at_store, *arguments]) == 0
        return json.loads(capsys.readouterr().out)

    said("queues", "add", QUEUE, "--dlq-capacity", "2", "--dlq-on-full", "refuse")
    with opened(store_url, heartbeat_ms=100, lease_ms=5_000) as lattice:
        stalled = declared(lattice)
        waiting = stalled.stall()

    shown = said("queues", "show", QUEUE)
    found = {each["code"]: each for each in said("doctor")}
    why = said("tasks", "why", waiting[0].id)

    assert (shown["is_stalled"], shown["dlq_on_full"], shown["held"], shown["parked"]) == (True, "refuse", 1, 2)
    assert "2 dead letters of at most 2 and 1 held task" in found["queue_stalled"]["finding"]
    assert found["queue_stalled"]["severity"] == "warning"
    assert "queue_stalled" in json.dumps(why)
