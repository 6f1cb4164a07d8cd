"""Claiming: the oldest first, each to one claimer, under a token that is never issued twice; and rescue of the dead."""

import threading
from collections.abc import Iterator
from datetime import timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lattice_tasks import Lattice, clock
from lattice_tasks.broker.middleware import DeadLetters
from lattice_tasks.dead_letters.entry import REPLAY_LOST
from lattice_tasks.store import workers
from lattice_tasks.tasks.claim import Observer, rescue
from lattice_tasks.tasks.invocation import Flag
from lattice_tasks.tasks.settle import Kind
from tests.claimers import Claimer, outcome
from tests.working import change, opened, rows, states, stored, until, working

pytestmark = pytest.mark.recycled


@pytest.fixture
def lattice(store_url: str) -> Iterator[Lattice]:
    with opened(store_url) as lattice:
        yield lattice


@pytest.fixture
def claimer(lattice: Lattice) -> Iterator[Claimer]:
    one = Claimer(lattice)
    yield one
    one.close()


def test_the_oldest_waiting_one_is_handed_out_first(lattice: Lattice, claimer: Claimer) -> None:
    """L-60"""
    jobs = [lattice.submit("q", "idle", (n,)) for n in range(10)]

    claimed = [*claimer.claim(3), *claimer.claim(1), *claimer.claim(100)]

    assert [one.id for one in claimed] == [job.id for job in jobs]
    assert claimer.claim(1) == []


def test_a_claim_gets_what_it_needs_to_run(lattice: Lattice, claimer: Claimer) -> None:
    """L-02: the queue is copied to the invocation."""
    job = lattice.submit("q", "train", (1,), {"lr": 0.5}, priority=3)

    claimed = claimer.claim_one()

    assert (claimed.id, claimed.actor, claimed.queue_id) == (job.id, "train", claimer.queue.id)
    assert claimed.body == b'{"args":[1],"kwargs":{"lr":0.5}}'
    assert (claimed.priority, claimed.attempt, claimed.flags, claimed.deadline_at) == (3, 0, 0, None)
    assert clock.from_us(claimed.submitted_at) == job.refresh().submitted_at


def test_a_claim_sees_its_queue_and_its_namespace_only(lattice: Lattice, store_url: str) -> None:
    """L-03, L-21, L-23"""
    with opened(store_url, namespace="other") as other:
        for one, queue in ((lattice, "q"), (lattice, "q/sub"), (lattice, "other"), (other, "q")):
            one.submit(queue, f"{one.settings.namespace} {queue}")
        claimers = [Claimer(lattice, "q"), Claimer(lattice, "q/sub"), Claimer(other, "q")]

        claimed = [[one.actor for one in claimer.claim(9)] for claimer in claimers]

        assert claimed == [["default q"], ["default q/sub"], ["other q"]]
        for claimer in claimers:
            claimer.close()


def test_a_paused_queue_hands_out_nothing_and_takes_everything(lattice: Lattice, claimer: Claimer) -> None:
    """C53"""
    lattice.queues.pause("q")
    lattice.submit("q", "idle")
    assert claimer.claim(5) == []
    assert lattice.queues.depth("q").waiting == 1
    lattice.queues.resume("q")
    assert len(claimer.claim(5)) == 1


def test_concurrent_claimers_get_every_invocation_exactly_once(lattice: Lattice) -> None:
    """L-66, T-03, C41"""
    count = 400
    lattice.submit_calls("q", "idle", [((n,), {}) for n in range(count)], {})
    barrier, got, most = threading.Barrier(5), [], []

    def claim_all() -> None:
        claimer = Claimer(lattice)
        barrier.wait()
        while True:
            claimed = claimer.claim(7)
            most.append(len(claimed))
            got.extend(one.id for one in claimed)
            if not claimed and not stored(lattice, "ready"):
                break
        claimer.close()

    threads = [threading.Thread(target=claim_all) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(got) == len(set(got)) == count
    assert max(most) <= 7
    assert stored(lattice, "lease") == count


def test_a_floor_is_only_a_hint(lattice: Lattice, claimer: Claimer) -> None:
    for n in range(6):
        lattice.submit("q", "idle", (n,))
    seqs = [seq for (seq,) in rows(lattice, "select seq from lattice_ready order by seq")]

    first = [one.seq for one in claimer.claim(2, floor=seqs[3])]
    assert first == (seqs[3:5] if lattice.engine.dialect == "postgres" else seqs[:2])  # SQLite looks from the start
    rest = [one.seq for one in claimer.claim(9)]

    assert rest == [seq for seq in seqs if seq not in first]


def test_nothing_is_leased_to_the_dead(lattice: Lattice, claimer: Claimer) -> None:
    lattice.submit("q", "idle")
    with lattice.engine.session() as session:
        assert rescue(session, claimer.worker_id, claimer.beat()) is not None

    brought = claimer.turn(limit=5)

    assert (brought.claimed, brought.is_alive) == ([], False)
    assert (stored(lattice, "ready"), stored(lattice, "lease")) == (1, 0)
    assert workers.beat(claimer.session, claimer.worker_id, []) == (None, [])


def test_an_incarnation_is_never_numbered_twice(lattice: Lattice) -> None:
    """C11: a token is never issued again."""
    seen = []
    for _ in range(3):
        claimer = Claimer(lattice)
        seen.append(claimer.worker_id)
        workers.leave(claimer.session, claimer.worker_id)
        claimer.close()

    assert len(set(seen)) == 3


# --- rescue -----------------------------------------------------------------------------------------------------------


def buried(lattice: Lattice, claimer: Claimer) -> None:
    with lattice.engine.session() as session:
        found = rescue(session, claimer.worker_id, claimer.beat())
    assert found is not None
    assert (found.worker_id, found.host, found.pid) == (claimer.worker_id, "host", 7)


def test_a_lease_that_was_alone_is_charged_and_waits_again(lattice: Lattice, claimer: Claimer) -> None:
    """T-05, C10"""
    job = lattice.submit("q", "idle")
    claimer.claim(1)

    buried(lattice, claimer)

    picture = job.refresh()
    assert (picture.state, picture.attempt) == ("waiting", 1)
    assert "its worker process died while running it (host:7" in picture.error
    assert rows(lattice, "select attempt, flags from lattice_ready") == [(1, Flag.SUSPECT)]
    assert stored(lattice, "worker") == stored(lattice, "lease") == 0


def test_of_several_leases_all_are_suspects_and_only_a_recorded_start_is_charged(
    lattice: Lattice, claimer: Claimer
) -> None:
    jobs = [lattice.submit("q", "idle") for _ in range(3)]
    claimed = claimer.claim(3)
    change(lattice, "update lattice_lease set flags = 8 where seq = %s", claimed[1].seq)

    buried(lattice, claimer)

    assert [job.refresh().attempt for job in jobs] == [0, 1, 0]
    assert rows(lattice, "select attempt, flags from lattice_ready order by seq") == [(0, 1), (1, 1), (0, 1)]


def test_a_rescued_one_keeps_its_place(lattice: Lattice, claimer: Claimer) -> None:
    """L-64, L-71"""
    jobs = [lattice.submit("q", "idle", priority=n) for n in range(4)]
    claimer.claim(2)
    buried(lattice, claimer)

    other = Claimer(lattice)
    claimed = other.claim(4)
    other.close()

    assert [one.id for one in claimed] == [job.id for job in jobs]
    assert [one.priority for one in claimed] == [0, 1, 2, 3]


def test_who_beats_meanwhile_or_is_buried_already_is_left_alone(lattice: Lattice, claimer: Claimer) -> None:
    job = lattice.submit("q", "idle")
    claimer.claim(1)
    seen = claimer.beat()
    claimer.beat()

    with lattice.engine.session() as session:
        assert rescue(session, claimer.worker_id, seen) is None
        assert job.refresh().state == "running"
        assert rescue(session, claimer.worker_id, seen + 1) is not None
        assert rescue(session, claimer.worker_id, seen + 1) is None
        assert rescue(session, 999, None) is None
    assert stored(lattice, "ready") == 1


def test_a_late_settle_of_the_dead_is_refused(lattice: Lattice, claimer: Claimer) -> None:
    """T-04, T-09, I8"""
    job = lattice.submit("q", "idle")
    claimed = claimer.claim_one()
    buried(lattice, claimer)
    other = Claimer(lattice)
    again = other.claim_one()

    assert claimer.settle((claimed, outcome(Kind.SUCCEED))).refused == [claimed.seq]
    assert claimer.turn([(claimed.seq, claimer.batch, None)]).refused == [claimed.seq]
    assert job.refresh().state == "running"
    assert other.settle((again, outcome(Kind.SUCCEED))).refused == []
    assert job.refresh().state == "succeeded"
    other.close()


def test_a_replay_whose_worker_died_is_parked_again_and_says_so(lattice: Lattice, claimer: Claimer) -> None:
    """T-07: exactly one attempt."""
    job = lattice.submit("q", "idle")
    claimer.settle((claimer.claim_one(), outcome(Kind.PARK)))
    shelf = lattice.dead_letters("q")
    (letter,) = shelf.list()
    shelf.replay(letter.entry_id)
    assert claimer.claim_one().flags == Flag.REPLAY

    buried(lattice, claimer)

    (again,) = shelf.list()
    assert (again.entry_id, again.reason, again.ended) == (letter.entry_id, "worker_lost", REPLAY_LOST)
    assert not again.is_replaying
    assert job.refresh().state == "parked"
    assert stored(lattice, "ready") == stored(lattice, "lease") == 0


def test_a_first_loss_and_that_of_a_replay_are_one_group(lattice: Lattice, claimer: Claimer) -> None:
    """One fault, one group: neither host nor counts are in the error."""
    lattice.submit("q", "idle")
    claimer.claim_one()
    buried(lattice, claimer)
    second, third = Claimer(lattice), Claimer(lattice)
    claimed = second.claim_one()
    spent = DeadLetters(max_retries=0).spent_by_losses(None, claimed)
    assert spent is not None
    second.settle((claimed, spent))
    shelf = lattice.dead_letters("q")
    (first,) = shelf.list()
    shelf.replay(first.entry_id)
    third.claim_one()

    buried(lattice, third)

    (again,) = shelf.list()
    assert (first.reason, again.reason, again.ended) == ("worker_lost", "worker_lost", REPLAY_LOST)
    assert first.error == again.error == "its worker process died while running it"
    assert again.worker == f"host:7, worker {third.worker_id}"
    assert [(group.live, group.hits) for group in lattice.letter_groups.list()] == [(1, 2)]
    second.close()
    third.close()


class Watch:
    """An observer on a clock of its own, looking at counters that the test moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, lease_s: float) -> None:
        self.now = 100.0
        self.beats: dict[int, int] = {}
        monkeypatch.setattr(clock, "monotonic", lambda: self.now)
        self.observer = Observer(lease_s)

    def dead_after(self, wait_s: float, asking_s: float = 0.0) -> list[int]:
        self.now += wait_s
        return [worker_id for worker_id, _beat in self.observer.dead(lambda: self._pulses(asking_s))]

    def _pulses(self, asking_s: float) -> list[tuple[int, int, str, int]]:
        self.now += asking_s
        return [(worker_id, beat, "h", worker_id) for worker_id, beat in self.beats.items()]


def test_an_observer_names_who_stood_still_for_a_whole_lease_by_its_own_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """C09, reliability 18: no wall clock decides who lives."""
    watch = Watch(monkeypatch, lease_s=10.0)
    watch.beats = {1: 5, 2: 7}
    assert watch.dead_after(0) == watch.dead_after(4.9) == []
    watch.beats[2] = 8
    assert watch.dead_after(4.9) == []
    assert watch.dead_after(0.2) == [1]

    watch.observer.forget()  # after an outage standing still proves nothing
    assert watch.dead_after(0) == watch.dead_after(4) == watch.dead_after(4) == []
    watch.beats = {1: 6, 2: 8, 3: 0}
    assert watch.dead_after(2) == [2]


@pytest.mark.parametrize("waits", [[(9.0, 0.0)], [(0.0, 9.0)], [(4.0, 0.0), (1.0, 4.9)], [(1.0, 4.9), (4.0, 0.0)]])
def test_an_observer_that_was_held_up_measures_anew(
    waits: list[tuple[float, float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before its question, or while it waited for the answer: what held it up may have held up the others as well."""
    watch = Watch(monkeypatch, lease_s=10.0)
    watch.beats = {1: 5}
    assert watch.dead_after(0) == watch.dead_after(2) == []

    assert [watch.dead_after(*wait) for wait in waits] == [[]] * len(waits)
    assert watch.dead_after(4.5) == []
    assert [watch.dead_after(1.4), watch.dead_after(4.5)] == [[], [1]]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(beats=st.lists(st.tuples(st.floats(0, 3), st.booleans()), max_size=40))
def test_who_beats_within_every_lease_is_never_named(
    beats: list[tuple[float, bool]], monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = Watch(monkeypatch, lease_s=5.0)
    last_move = watch.now
    watch.beats = {1: 0}
    for wait_s, moves in [(0.0, True), *beats]:
        if moves or watch.now + wait_s - last_move >= 5.0:
            watch.beats[1] += 1
            last_move = watch.now + wait_s
        assert watch.dead_after(wait_s) == []


def test_a_worker_frees_what_it_was_leased_without_hearing_of_it(
    lattice: Lattice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A claim whose answer was lost: the lease is found by the audit and goes back uncharged."""
    monkeypatch.setattr("lattice_tasks.broker.pump._AUDIT_S", 0.05)
    ran: list[int] = []

    @lattice.task(queue="q")
    def note(number: int) -> None:
        ran.append(number)

    note.submit(0)
    with working(lattice):
        until(lambda: ran == [0])
        job = lattice.submit("q", "note", (1,), delay=timedelta(hours=1))
        change(
            lattice,
            """insert into lattice_lease (worker_id, seq, batch, queue_id, priority, attempt, flags, claimed_at)
                   select %s, seq, 999999, queue_id, priority, attempt, flags, 0 from lattice_scheduled""",
            lattice.broker._pump.worker_id,
        )
        change(lattice, "delete from lattice_scheduled")
        until(lambda: ran == [0, 1])
        until(lambda: job.refresh().state == "succeeded")
    assert states([job]) == ["succeeded"]
    assert job.refresh().attempt == 0
