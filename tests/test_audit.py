"""The audit: a change and its record are one, what was begun and not ended shows, evictions are recorded."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from lattice_tasks import Lattice
from lattice_tasks import audit as audit_room
from lattice_tasks.audit import operator, ranges
from lattice_tasks.dead_letters.parking import ShelfSpec
from lattice_tasks.errors import InvalidInput, QueueExists, StoreError
from lattice_tasks.store import audit as audit_rows
from lattice_tasks.store import trees
from lattice_tasks.store.engine import Statement
from lattice_tasks.tasks.settle import Ended, Kind, Outcome, settle
from tests.chains import RECORDS, chain, fault
from tests.claimers import Claimer
from tests.working import change, heard, opened, rows, stored, until, until_state, working

#: Ends in the middle of what it said it would do.
CRASHER = """
import os, sys
from lattice_tasks import Lattice
lattice = Lattice(sys.argv[1], set_default=False, log_level="critical")
with lattice.audit.in_parts("dlq replay", "orders", who="ann", intended={"letters": "1-9"}):
    os._exit(9)
"""

pytestmark = pytest.mark.recycled


@pytest.fixture
def lattice(store_url: str) -> Iterator[Lattice]:
    with opened(store_url) as lattice:
        lattice.namespace_id  # noqa: B018 - opens the store
        yield lattice


@pytest.fixture
def chained(lattice: Lattice) -> Lattice:
    return chain(lattice)


def test_an_act_and_its_record_commit_together_or_not_at_all(lattice: Lattice, monkeypatch: pytest.MonkeyPatch) -> None:
    """I13: neither a change without its record nor a record without its change."""
    lattice.queues.add("taken")
    with pytest.raises(QueueExists), lattice.audit.acting("queues add", "taken", who="ann"):
        lattice.queues.add("taken")

    def fail(*_: Any) -> None:
        raise StoreError("no")

    def act() -> None:
        with lattice.audit.acting("queues add", "gpu", who="ann"):
            lattice.queues.add("gpu")
            lattice.submit("taken", "idle")

    with monkeypatch.context() as patched:
        patched.setattr(audit_rows, "write_head", fail)
        with pytest.raises(StoreError):
            act()

    assert (stored(lattice, "audit"), stored(lattice), [queue.name for queue in lattice.queues.list()]) == (
        0,
        0,
        ["taken"],
    )


def test_a_queue_that_was_rolled_back_takes_no_task(lattice: Lattice) -> None:
    """I1: a task must not line up in a queue that is not there."""
    with suppress(ZeroDivisionError), lattice.audit.acting("queues add", "gpu", who="ann"):
        lattice.queues.add("gpu")
        raise ZeroDivisionError

    job = lattice.submit("gpu", "idle")

    assert job.refresh().queue == "gpu"
    assert rows(lattice, "select count(*) from lattice_ready r join lattice_queue q on q.id = r.queue_id") == [(1,)]


def test_a_submit_inside_an_act_wakes_after_the_commit(lattice: Lattice, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    monkeypatch.setattr(lattice._submitter, "_wake", lambda ids: seen.append(stored(lattice, "audit")))

    with lattice.audit.acting("tasks submit", "gpu", who="ann"):
        lattice.submit("gpu", "idle")
        assert seen == []

    assert seen == [1]


def test_the_library_by_itself_records_nothing(lattice: Lattice) -> None:
    lattice.queues.add("gpu")
    lattice.queues.pause("gpu")
    lattice.submit("gpu", "idle").cancel()

    assert lattice.audit.count() == 0


def test_a_crash_in_the_middle_shows_as_begun_without_an_end(store_url: str, lattice: Lattice) -> None:
    """I13: what was intended is committed before the first step."""
    with lattice.audit.in_parts("dlq discard", "orders", who="ann", intended={"letters": "1-3"}) as act:
        act.after = {"discarded": "1-3"}

    done = subprocess.run([sys.executable, "-c", CRASHER, store_url], timeout=60, check=False)

    (open_one,) = lattice.audit.list(is_unfinished=True)
    ended, begun = lattice.audit.list(verb="dlq discard")
    assert done.returncode == 9
    assert (open_one.phase, open_one.verb, open_one.before, open_one.after) == (
        "begun",
        "dlq replay",
        {"letters": "1-9"},
        {},
    )
    assert (begun.phase, ended.phase, ended.begun, ended.after) == ("begun", "ended", begun.n, {"discarded": "1-3"})
    assert fault(lattice) is None


def test_what_fails_in_the_middle_ends_with_the_name_of_the_error(lattice: Lattice) -> None:
    """Never its text, which may hold what a task was given."""
    intended = {"letters": "1-3"}
    with suppress(KeyError), lattice.audit.in_parts("dlq replay", "orders", who="ann", intended=intended) as act:
        act.after = {"replaying": "1"}
        raise KeyError("a secret")

    ended = lattice.audit.list(limit=1)[0]
    assert (ended.phase, ended.after) == ("ended", {"replaying": "1", "error": "KeyError"})


def test_what_a_full_shelf_evicts_is_recorded_with_the_park(store_url: str) -> None:
    """Design, "Dead letters": an eviction is kept as a line in the audit feed; one for each park that evicts."""
    with opened(store_url) as lattice:
        events = heard(lattice)
        lattice.queues.add("orders", dlq_capacity=2)

        @lattice.task(queue="orders", max_retries=0)
        def fail(number: int) -> None:
            raise ValueError(number)

        with working(lattice, threads=1):
            jobs = fail.submit_many([(number,) for number in range(5)])
            until_state(jobs[-1], "parked")
            until(lambda: len(events.of("dead_letter.evicted")) == 3)

        records = lattice.audit.list(verb="dlq evict")
        letters = [letter for record in reversed(records) for letter in record.before["letters"]]
        assert {(record.who, record.target) for record in records} == {("system", "orders")}
        assert letters == [[number + 1, job.id] for number, job in enumerate(jobs[:3])]
        assert fault(lattice) is None


def test_the_head_of_the_audit_is_the_last_lock_of_a_settlement(
    lattice: Lattice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two settlements, or one and an operator, must not wait for each other in a circle."""
    taken: list[str] = []

    def told(module: Any, name: str, lock: str) -> None:
        real = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *given: (taken.append(lock), real(*given))[1])

    claimers = [Claimer(lattice, name) for name in ("a", "b")]
    ended = []
    for claimer in claimers:
        for _ in range(3):
            lattice.submit(claimer.queue.name, "train")
        ended += [(one, claimer.batch) for one in claimer.claim(3)]
    with lattice.engine.session() as session:
        session.execute(Statement("update lattice_lease set worker_id = %s"), (claimers[0].worker_id,))
    outcome = Outcome(Kind.PARK, reason="unknown", error="no luck")
    named = [Ended(one.seq, batch, one.id, one.actor, outcome) for one, batch in ended]
    told(trees, "hold", "shelf")
    told(audit_rows, "hold_head", "audit")

    settle(
        claimers[0].session,
        claimers[0].worker_id,
        "w",
        "1",
        named,
        lambda queue_id: (f"q{queue_id}", ShelfSpec(queue_id, 1)),
    )

    assert taken == ["shelf", "shelf", "audit"]
    assert [len(record.before["letters"]) for record in lattice.audit.list()] == [2, 2]
    for claimer in claimers:
        claimer.close()


def test_one_park_that_evicts_many_writes_one_record(lattice: Lattice) -> None:
    queue = lattice.queues.add("orders")
    gone = [(entry_id, f"task {entry_id}") for entry_id in range(1, 200)]

    with lattice.engine.session() as session, session.transaction():
        audit_room.record_evictions(session, {(queue.id, "orders"): gone, (10**6, "of nobody"): gone})
        audit_room.record_evictions(session, {})

    (record,) = lattice.audit.list()
    assert record.before == {"letters": [list(one) for one in gone]}


def test_records_are_found_by_who_what_and_when(chained: Lattice) -> None:
    with chained.audit.acting("queues pause", "gpu", who="ben") as act:
        act.after = {"state": "paused"}
    at = chained.audit.list(limit=1)[0].at

    def found(**filters: Any) -> list[int]:
        return [record.n for record in chained.audit.list(**filters)]

    assert found(who="ben") == found(verb="queues pause") == found(target="gpu") == [RECORDS + 1]
    assert found(who="ann", limit=2) == [RECORDS, RECORDS - 1]
    assert RECORDS + 1 in found(since=at)
    assert found(who="ann", target="gpu") == []
    with pytest.raises(InvalidInput):
        found(limit=0)
    with pytest.raises(InvalidInput):
        found(since=at.replace(tzinfo=None))


def test_no_namespace_sees_the_records_of_another(store_url: str, chained: Lattice) -> None:
    """I12, L-21: nothing crosses between namespaces; each has a chain of its own."""
    with opened(store_url, namespace="other") as other:
        with other.audit.acting("queues add", "gpu", who="ben"):
            other.queues.add("gpu")

        assert [(record.n, record.who) for record in other.audit.list()] == [(1, "ben")]
        assert {record.who for record in chained.audit.list()} == {"ann"}
        assert (fault(other), fault(chained)) == (None, None)


def test_names_and_reasons_are_one_clean_line(lattice: Lattice) -> None:
    reason = "see\nhttp://ann:secret@host/ \x1b[31m\ud800 " + "x" * 5_000
    with lattice.audit.acting("queues pause", "g\x00pu", who="ann\r\nroot\u202e", reason=reason):
        pass

    (record,) = lattice.audit.list()
    assert (record.who, record.target) == ("ann root�", "g�pu")
    assert record.reason is not None
    assert record.reason.startswith("see http://ann:***@host/ �[31m� x")
    assert len(record.reason) == 2_000
    assert fault(lattice) is None


def test_the_operator_is_who_they_say_else_the_user_of_the_host() -> None:
    assert operator({"LATTICE_OPERATOR": " ann\n"}) == "ann"
    assert "@" in operator({"LATTICE_OPERATOR": "  "})
    assert operator({}) == operator({"USER": "somebody", "LOGNAME": "else"})


def test_a_record_that_cannot_be_read_is_shown_as_it_is(chained: Lattice) -> None:
    change(chained, "update lattice_audit set before = 'no json', after = '[1]' where n = 1")

    record = chained.audit.list(limit=100)[-1]

    assert (record.before, record.after) == ({"unreadable": "no json"}, {"unreadable": "[1]"})


@pytest.mark.parametrize(("ids", "text"), [([], ""), ([7], "7"), ([3, 1, 2, 2], "1-3"), ([1, 2, 4, 6, 7], "1-2,4,6-7")])
def test_ids_are_written_as_ranges(ids: list[int], text: str) -> None:
    assert ranges(ids) == text
