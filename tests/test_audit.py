"""The audit: one chain whoever appends, and nothing in it can be changed, removed or moved unseen."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lattice_tasks import Lattice
from lattice_tasks import audit as audit_room
from lattice_tasks.audit import AuditRow, operator, ranges
from lattice_tasks.dead_letters.parking import ShelfSpec
from lattice_tasks.errors import InvalidInput, QueueExists, StoreError
from lattice_tasks.store import audit as audit_rows
from lattice_tasks.store import trees
from lattice_tasks.store.engine import Statement
from lattice_tasks.tasks.settle import Ended, Kind, Outcome, settle
from tests.claimers import Claimer
from tests.working import change, heard, opened, rows, stored, until, until_state, working

#: Appends for as long as it is told to; a file of several, all at once.
APPENDER = """
import sys
from lattice_tasks import Lattice
lattice = Lattice(sys.argv[1], set_default=False, log_level="critical")
lattice.namespace_id
print("ready", flush=True)
sys.stdin.readline()
for number in range(int(sys.argv[3])):
    if number % 2:
        with lattice.audit.acting("test act", sys.argv[2], who=sys.argv[2]) as act:
            act.after = {"number": number}
    else:
        with lattice.audit.in_parts("test parts", sys.argv[2], who=sys.argv[2], intended={"number": number}) as act:
            act.after = {"number": number}
lattice.close()
"""
#: Ends in the middle of what it said it would do.
CRASHER = """
import os, sys
from lattice_tasks import Lattice
lattice = Lattice(sys.argv[1], set_default=False, log_level="critical")
with lattice.audit.in_parts("dlq replay", "orders", who="ann", intended={"letters": "1-9"}):
    os._exit(9)
"""
RECORDS = 12

pytestmark = pytest.mark.recycled


@pytest.fixture
def lattice(store_url: str) -> Iterator[Lattice]:
    with opened(store_url) as lattice:
        lattice.namespace_id  # noqa: B018 - opens the store
        yield lattice


@pytest.fixture
def chained(lattice: Lattice) -> Lattice:
    for number in range(RECORDS):
        with lattice.audit.acting("test act", f"target {number}", who="ann", reason="because") as act:
            act.before, act.after = {"number": number}, {"number": number + 1}
    return lattice


@contextmanager
def tampered(lattice: Lattice, *statements: tuple[Any, ...]) -> Iterator[None]:
    """Inside the block, after these statements behind the lattice's back; then as if they had never been."""

    class Undo(Exception):
        pass

    with suppress(Undo), lattice.engine.together() as session:
        for text, *params in statements:
            session.execute(Statement(text), params)
        yield
        raise Undo


def fault(lattice: Lattice) -> tuple[int, str] | None:
    found = lattice.audit.verify().fault
    return None if found is None else (found.n, found.kind)


def test_many_processes_at_once_make_one_chain(store_url: str, lattice: Lattice) -> None:
    """I13: appended under one lock, so numbers are dense and no two records follow the same one."""
    each, names = 20, ["ann", "ben", "cleo", "dan"]
    with_input = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    running = [
        subprocess.Popen([sys.executable, "-c", APPENDER, store_url, name, str(each)], **with_input) for name in names
    ]
    for process in running:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"

    for process in running:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in running:
        process.communicate(timeout=60)

    found = rows(lattice, "select n, previous from lattice_audit order by n")
    assert [process.returncode for process in running] == [0] * len(names)
    assert [n for n, _ in found] == list(range(1, len(names) * each * 3 // 2 + 1))
    assert len({previous for _, previous in found}) == len(found)
    assert len({record.who for record in lattice.audit.list(limit=20)}) > 1, "they did not run at once"
    assert lattice.audit.verify().records == len(found)
    assert fault(lattice) is None


FIELDS = {
    "at": 7,
    "who": "somebody else",
    "verb": "queues resume",
    "target": "another",
    "reason": None,
    "before": '{"number":99}',
    "after": "{}",
    "begun": 3,
    "previous": "f" * 64,
    "hash": "e" * 64,
}


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(n=st.integers(1, RECORDS), name=st.sampled_from(sorted(FIELDS)))
def test_a_changed_field_is_found(chained: Lattice, n: int, name: str) -> None:
    """I13"""
    with tampered(chained, (f"update lattice_audit set {name} = %s where n = %s", FIELDS[name], n)):
        assert fault(chained) == (n, "changed")

    assert fault(chained) is None


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(n=st.integers(1, RECORDS))
def test_a_removed_record_is_found(chained: Lattice, n: int) -> None:
    """I13: removed, moved away, or given to another namespace."""
    for text in (
        "delete from lattice_audit where n = %s",
        "update lattice_audit set namespace_id = namespace_id + 1 where n = %s",
    ):
        with tampered(chained, (text, n)):
            assert fault(chained) == ((n, "removed") if n < RECORDS else (n, "cut_off"))
    with tampered(chained, ("update lattice_audit set n = 40 where n = %s", n)):
        assert fault(chained) == (n, "removed")


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(pair=st.lists(st.integers(1, RECORDS), min_size=2, max_size=2, unique=True))
def test_swapped_records_are_found(chained: Lattice, pair: list[int]) -> None:
    """I13"""
    move = "update lattice_audit set n = %s where n = %s"
    with tampered(chained, (move, 1_000, pair[0]), (move, pair[0], pair[1]), (move, pair[1], 1_000)):
        assert fault(chained) == (min(pair), "reordered")
        assert f"record {max(pair)}" in chained.audit.verify().fault.detail


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(kept=st.integers(0, RECORDS - 1))
def test_a_cut_tail_is_found_against_the_head(chained: Lattice, kept: int) -> None:
    """I13"""
    with tampered(chained, ("delete from lattice_audit where n > %s", kept)):
        assert fault(chained) == (kept + 1, "cut_off")


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(n=st.integers(1, RECORDS))
def test_a_record_that_is_rewritten_with_its_hash_is_found(chained: Lattice, n: int) -> None:
    """I13: the next record, or the head, still has the hash that it had."""
    with chained.engine.session() as session:
        (row,) = audit_rows.page(session, chained.namespace_id, n - 1, 1)
    forged = row._replace(who="nobody")
    forged = forged._replace(hash=audit_room._digest(chained.namespace_id, forged))

    with tampered(chained, ("update lattice_audit set who = %s, hash = %s where n = %s", "nobody", forged.hash, n)):
        assert fault(chained) == (n, "changed")


@pytest.mark.parametrize(
    ("statement", "found"),
    [
        ("delete from lattice_audit_head", (RECORDS, "removed")),
        (f"update lattice_audit_head set n = {RECORDS - 2}", (RECORDS - 1, "changed")),
        ("update lattice_audit_head set hash = 'x'", (RECORDS, "changed")),
        ("update lattice_audit_head set n = 100", (RECORDS + 1, "cut_off")),
    ],
)
def test_a_head_that_does_not_fit_is_found(chained: Lattice, statement: str, found: tuple[int, str]) -> None:
    """I13"""
    with tampered(chained, (statement,)):
        assert fault(chained) == found


def test_a_chain_is_walked_in_pages(chained: Lattice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_room, "_PAGE", 5)
    pages: list[int] = []

    verdict = chained.audit.verify(pages.append)

    assert (verdict.records, verdict.fault, pages) == (RECORDS, None, [5, 5, 2])
    assert verdict.head == chained.audit.list(limit=1)[0].hash


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


def test_every_field_is_hashed() -> None:
    row = AuditRow(1, 2, "who", "verb", "target", None, "{}", "{}", None, "0" * 64, "")

    def digests() -> Iterator[str]:
        yield audit_room._digest(1, row)
        yield audit_room._digest(2, row)
        for name in row._fields[:-1]:
            yield audit_room._digest(1, row._replace(**{name: "other"}))
        yield audit_room._digest(1, row._replace(who="whov", verb="erb"))

    found = list(digests())
    assert len(set(found)) == len(found)


@pytest.mark.parametrize(("ids", "text"), [([], ""), ([7], "7"), ([3, 1, 2, 2], "1-3"), ([1, 2, 4, 6, 7], "1-2,4,6-7")])
def test_ids_are_written_as_ranges(ids: list[int], text: str) -> None:
    assert ranges(ids) == text
