"""One transaction makes an outcome so; a token that is not the lease's own changes nothing."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from lattice_tasks import Lattice
from lattice_tasks.broker import pump
from lattice_tasks.errors import StoreError, StoreUnavailable
from lattice_tasks.store import turns, workers
from lattice_tasks.store.session import Session
from lattice_tasks.tasks.settle import Kind
from tests.claimers import Claimer, outcome
from tests.working import change, heard, opened, rows, states, stored, working

pytestmark = pytest.mark.recycled

SUCCESS = b'{"x":1}'


@pytest.fixture
def lattice(store_url: str) -> Iterator[Lattice]:
    with opened(store_url) as lattice:
        yield lattice


@pytest.fixture
def claimer(lattice: Lattice) -> Iterator[Claimer]:
    one = Claimer(lattice)
    yield one
    one.close()


ENDS = {
    Kind.SUCCEED: ("succeeded", 0),
    Kind.RETRY: ("scheduled", 1),
    Kind.PARK: ("parked", 1),
    Kind.EXPIRE: ("expired", 0),
    Kind.CANCEL: ("cancelled", 0),
    Kind.RELEASE: ("waiting", 0),
}


def test_each_kind_of_outcome_leads_where_the_table_says(lattice: Lattice, claimer: Claimer) -> None:
    """T-01"""
    for kind in Kind:
        job = lattice.submit("q", "idle")
        claimed = claimer.claim_one()

        settled = claimer.settle((claimed, outcome(kind, delay_us=60_000_000 if kind is Kind.RETRY else 0)))

        picture = job.refresh()
        assert (picture.state, picture.attempt) == ENDS[kind]
        assert settled.refused == []
        assert stored(lattice, "lease") == 0
        assert sum(stored(lattice, place) for place in ("ready", "scheduled")) == (kind in (Kind.RETRY, Kind.RELEASE))
        change(lattice, "delete from lattice_ready")
        change(lattice, "delete from lattice_scheduled")


def test_a_stale_token_changes_nothing(lattice: Lattice, claimer: Claimer) -> None:
    """T-04, I8: another batch, another worker, or a lease that is gone."""
    job = lattice.submit("q", "idle")
    claimed = claimer.claim_one()
    before = picture_of(lattice)

    for kind in Kind:
        for settled in (
            claimer.settle((claimed, outcome(kind)), batch=claimer.batch + 1),
            claimer.settle((claimed, outcome(kind)), batch=claimer.batch - 1),
            claimer.settle((claimed, outcome(kind)), worker_id=claimer.worker_id + 1),
        ):
            assert (settled.refused, settled.events, settled.woken) == ([claimed.seq], [], set())
    assert claimer.turn([(claimed.seq, claimer.batch + 7, SUCCESS)]).refused == [claimed.seq]

    assert picture_of(lattice) == before
    assert job.refresh().state == "running"
    claimer.batch = 1
    assert claimer.settle((claimed, outcome(Kind.SUCCEED)), batch=1).refused == []
    for kind in Kind:
        assert claimer.settle((claimed, outcome(kind)), batch=1).refused == [claimed.seq]
    assert job.refresh().state == "succeeded"


def test_settling_twice_with_the_current_token_is_the_same_as_once(lattice: Lattice, claimer: Claimer) -> None:
    """T-04, T-09: completion is at most once."""
    job = lattice.submit("q", "idle")
    claimed = claimer.claim_one()
    token = (claimed.seq, claimer.batch)

    assert claimer.turn([(*token, SUCCESS)]).refused == []
    after = picture_of(lattice)
    assert claimer.turn([(*token, b"2")]).refused == [claimed.seq]
    assert claimer.turn([(*token, b"2")], limit=5).refused == [claimed.seq]

    assert picture_of(lattice) == after
    assert job.result() == {"x": 1}


def test_a_turn_settles_and_claims_at_once(lattice: Lattice, claimer: Claimer) -> None:
    jobs = [lattice.submit("q", "idle", (n,)) for n in range(4)]
    first = claimer.claim(2)
    token = claimer.batch

    brought = claimer.turn([(one.seq, token, None) for one in first], limit=5)

    assert [one.id for one in brought.claimed] == [job.id for job in jobs[2:]]
    assert brought.is_alive
    assert states(jobs) == ["succeeded", "succeeded", "running", "running"]


def test_a_batch_of_all_kinds_is_one_transaction(
    lattice: Lattice, claimer: Claimer, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [lattice.submit("q", "idle") for _ in Kind]
    claimed = claimer.claim(len(Kind))
    before = picture_of(lattice)
    ended = list(zip(claimed, map(outcome, Kind), strict=True))

    original, calls = Session.execute, []

    def failing(session: Session, *args: Any) -> int:
        calls.append(1)
        if len(calls) == len(Kind):
            raise StoreError("no")
        return original(session, *args)

    with monkeypatch.context() as patch:
        patch.setattr(Session, "execute", failing)
        with pytest.raises(StoreError):
            claimer.settle(*ended)
    assert picture_of(lattice) == before

    claimer.settle(*ended)
    assert states(jobs) == [ENDS[kind][0] for kind in Kind]


def test_a_refused_one_does_not_hold_up_its_batch(lattice: Lattice, claimer: Claimer) -> None:
    jobs = [lattice.submit("q", "idle") for _ in range(3)]
    claimed = claimer.claim(3)
    change(lattice, "delete from lattice_lease where seq = %s", claimed[1].seq)

    settled = claimer.settle(*[(one, outcome(Kind.PARK)) for one in claimed])

    assert settled.refused == [claimed[1].seq]
    assert states([jobs[0], jobs[2]]) == ["parked", "parked"]
    assert lattice.dead_letters("q").count() == 2


def test_a_retry_keeps_its_place_and_its_priority(lattice: Lattice, claimer: Claimer) -> None:
    """L-64, L-71"""
    jobs = [lattice.submit("q", "idle", priority=n) for n in range(3)]
    first = claimer.claim_one()

    claimer.settle((first, outcome(Kind.RETRY)))
    assert claimer.promote() == [first.seq]

    again = claimer.claim(3)
    assert [one.id for one in again] == [job.id for job in jobs]
    assert [(one.attempt, one.priority) for one in again] == [(1, 0), (0, 1), (0, 2)]


def test_what_is_put_off_is_hidden_until_it_is_due_and_promoted_once(lattice: Lattice, claimer: Claimer) -> None:
    """L-64"""
    later = lattice.submit("q", "idle", delay=timedelta(hours=1))
    due = lattice.submit("q", "idle", delay=timedelta(0))
    lattice.queues.add("other")
    elsewhere = lattice.submit("other", "idle", delay=timedelta(0))

    assert claimer.claim(5) == []
    assert claimer.turn(limit=1).due_us <= 0
    assert len(claimer.promote()) == 1
    assert claimer.promote() == []
    assert 0 < claimer.turn(limit=1).due_us <= 3_600_000_000
    assert states([later, due, elsewhere]) == ["scheduled", "running", "scheduled"]


def test_promotion_goes_in_order_and_in_pages(lattice: Lattice, claimer: Claimer) -> None:
    jobs = [lattice.submit("q", "idle", delay=timedelta(microseconds=n)) for n in range(10)]
    by_seq = {seq for (seq,) in rows(lattice, "select seq from lattice_scheduled")}

    pages = [claimer.promote(4) for _ in range(4)]

    assert [len(page) for page in pages] == [4, 4, 2, 0]
    assert {seq for page in pages for seq in page} == by_seq
    assert [one.id for one in claimer.claim(10)] == [job.id for job in jobs]


def test_a_cancel_that_was_asked_for_wins_over_every_end_but_success(lattice: Lattice, claimer: Claimer) -> None:
    """C52"""
    kinds = [Kind.RETRY, Kind.RELEASE, Kind.PARK, Kind.CANCEL, Kind.SUCCEED]
    jobs = [lattice.submit("q", "idle") for _ in kinds]
    claimed = claimer.claim(len(kinds))
    for job in jobs:
        assert job.cancel("enough")

    claimer.settle(*zip(claimed, map(outcome, kinds), strict=True))

    assert states(jobs) == ["cancelled"] * 4 + ["succeeded"]
    assert [job.refresh().error for job in jobs] == ["enough"] * 4 + [None]
    assert lattice.dead_letters("q").count() == stored(lattice, "ready") == stored(lattice, "scheduled") == 0


def test_what_was_handed_back_with_a_cancel_on_it_is_not_run(lattice: Lattice, claimer: Claimer) -> None:
    job = lattice.submit("q", "idle")
    claimed = claimer.claim_one()
    job.cancel("enough")
    workers.free_leases(claimer.session, claimer.worker_id, [(claimed.seq, claimer.batch)])

    again = claimer.claim_one()
    refusal = lattice.broker._screen(again, 0)

    assert refusal is not None
    assert refusal.kind is Kind.CANCEL
    claimer.settle((again, refusal))
    assert (job.refresh().state, job.refresh().error) == ("cancelled", "enough")


def test_leaving_in_good_order_charges_nothing(lattice: Lattice, claimer: Claimer) -> None:
    jobs = [lattice.submit("q", "idle") for _ in range(3)]
    claimer.claim(3)

    assert workers.leave(claimer.session, claimer.worker_id) == 3

    assert states(jobs) == ["waiting"] * 3
    assert rows(lattice, "select attempt, flags from lattice_ready") == [(0, 0)] * 3
    assert stored(lattice, "worker") == 0


def test_a_turn_whose_answer_was_lost_neither_repeats_nor_loses_anything(
    lattice: Lattice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reliability 12: it settled one and claimed another, and nobody heard of either."""
    ran: list[int] = []

    @lattice.task(queue="q")
    def note(number: int) -> int:
        ran.append(number)
        return number

    def lose(session: Session, worker_id: int, batch: int, succeeded: Any, wants: Any, watched: Any) -> Any:
        brought = turns.turn(session, worker_id, batch, succeeded, wants, watched)
        if succeeded and brought.claimed and not lost:
            lost.extend(one.id for one in brought.claimed)
            raise StoreUnavailable("the connection was lost")
        return brought

    lost: list[str] = []
    monkeypatch.setattr(pump, "turn", lose)
    events = heard(lattice)
    jobs = note.submit_many([(number,) for number in range(3)])
    with working(lattice, threads=1):
        assert [job.result(timeout=10) for job in jobs] == [0, 1, 2]

    assert lost
    assert sorted(ran) == [0, 1, 2]
    assert {job.refresh().attempt for job in jobs} == {0}
    assert events.of("settle.refused") == []
    assert events.of("store.recovered")


def test_a_retention_of_nothing_keeps_what_is_open_or_parked(lattice: Lattice, claimer: Claimer) -> None:
    """C42"""
    jobs = {kind: lattice.submit("q", "idle", key=kind.value) for kind in Kind}
    waiting = lattice.submit("q", "idle")
    claimed = claimer.claim(len(Kind))
    claimer.settle(*[(one, outcome(kind, delay_us=60_000_000)) for one, kind in zip(claimed, Kind, strict=True)])
    change(lattice, "update lattice_queue set retention_ms = 0")
    change(lattice, "update lattice_invocation set finished_at = finished_at - 1000 where finished_at is not null")

    assert lattice.prune() == 3

    assert states([jobs[Kind.RETRY], jobs[Kind.PARK], jobs[Kind.RELEASE], waiting]) == [
        "scheduled",
        "parked",
        "scheduled",
        "waiting",
    ]
    for kind in (Kind.SUCCEED, Kind.EXPIRE, Kind.CANCEL):
        with pytest.raises(LookupError):
            jobs[kind].refresh()


def picture_of(lattice: Lattice) -> list[Any]:
    """Everything that a settlement could change."""
    return [
        rows(lattice, "select seq, state, attempt, error, result, entry_id from lattice_invocation order by seq"),
        rows(lattice, "select seq, attempt, flags from lattice_ready order by seq"),
        rows(lattice, "select seq, due_at, attempt, flags from lattice_scheduled order by seq"),
        rows(lattice, "select seq, worker_id, batch, flags from lattice_lease order by seq"),
        rows(lattice, "select count(*) from lattice_tree_row"),
    ]
