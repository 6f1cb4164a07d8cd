"""A failed task whose shelf has no place for it is held, and gets its place when there is one."""

from typing import Any

from lattice_tasks.maintenance import Maintenance
from lattice_tasks.tasks.invocation import State
from tests.working import Gate, change, heard, opened, until_state, working


def test_what_finds_its_shelf_full_of_replays_is_held_and_parked_later(store_url: str) -> None:
    """Design, "Replay": if every entry is pinned and the shelf is full, the newcomer is `held`, never lost."""
    gate = Gate()
    with opened(store_url, heartbeat_ms=100, lease_ms=5_000) as lattice:
        events = heard(lattice)
        lattice.queues.add("orders", dlq_capacity=1)

        @lattice.task(queue="orders", max_retries=0)
        def fail(name: str) -> None:
            if name == "first" and fail.replayed:
                gate.pass_through()
            raise ValueError(name)

        fail.replayed = False
        with working(lattice, threads=2):
            first = fail.submit("first")
            until_state(first, "parked")
            fail.replayed = True
            entry_id = lattice.dead_letters("orders").list()[0].entry_id
            lattice.dead_letters("orders").replay(entry_id)
            gate.await_entered()

            newcomer = fail.submit("newcomer")

            until_state(newcomer, "held")
            assert lattice.queues.depth("orders").held == 1
            assert [fields["task_id"] for fields in events.of("task.held")] == [newcomer.id]

            gate.open()
            until_state(first, "parked")
            lattice.dead_letters("orders").discard(entry_id)
            until_state(newcomer, "parked")

        letter = lattice.dead_letters("orders").list()[0]
        assert (letter.task_id, letter.reason, letter.error) == (newcomer.id, "unknown", "ValueError: newcomer")
        assert letter.entry_id > entry_id


def test_a_held_task_never_pushes_out_what_is_parked(store_url: str) -> None:
    with opened(store_url) as lattice:
        lattice.queues.add("orders", dlq_capacity=1)

        @lattice.task(queue="orders", max_retries=0)
        def fail(_name: str) -> None:
            raise ValueError

        with working(lattice):
            parked = until_state(fail.submit("a"), "parked")
        held = fail.submit("b")
        _hold(lattice, held.id)

        with lattice.engine.session() as session:
            Maintenance(lattice.settings, lattice.telemetry, lambda _ids: None).run_due(session)

        assert [letter.task_id for letter in lattice.dead_letters("orders").list()] == [parked.id]
        assert held.refresh().state == "held"


def _hold(lattice: Any, task_id: str) -> None:
    change(lattice, "delete from lattice_ready")
    sql = "update lattice_invocation set state = %s, reason = 'unknown', attempt = 1 where id = %s"
    assert change(lattice, sql, State.HELD.code, task_id) == 1
    change(
        lattice, "insert into lattice_held (queue_id, seq) select queue_id, seq from lattice_invocation where state = 3"
    )
