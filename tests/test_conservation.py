"""Whatever happens in whatever order, every invocation is in exactly one place, and it is the one the model says."""

from datetime import timedelta
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from lattice_tasks import Job, Lattice
from lattice_tasks.store.turns import Claimed
from lattice_tasks.tasks.claim import rescue
from lattice_tasks.tasks.settle import Kind
from tests.claimers import Claimer, outcome
from tests.working import change, rows

pytestmark = pytest.mark.recycled

ENDS = {
    Kind.SUCCEED: "succeeded",
    Kind.RETRY: "scheduled",
    Kind.PARK: "parked",
    Kind.EXPIRE: "expired",
    Kind.CANCEL: "cancelled",
    Kind.RELEASE: "waiting",
}


class Lives(RuleBasedStateMachine):
    """One queue in a namespace of its own, two claimers that may die, and a model of what they should have done."""

    store_url = ""
    jobs: Bundle[Job] = Bundle("jobs")
    leases: Bundle[tuple[Claimed, int, int]] = Bundle("leases")

    def __init__(self) -> None:
        super().__init__()
        self.lattice = Lattice(self.store_url, namespace=str(uuid4()), set_default=False, log_level="critical")
        self.claimers = [Claimer(self.lattice), Claimer(self.lattice)]
        self.states: dict[str, str] = {}
        self.attempts: dict[str, int] = {}
        self.replaying: set[str] = set()
        self.cancelling: set[str] = set()
        self.held: dict[str, tuple[int, int]] = {}

    def teardown(self) -> None:
        for claimer in self.claimers:
            claimer.close()
        self.lattice.close()

    @rule(target=jobs, is_later=st.booleans(), count=st.integers(1, 2))
    def submit(self, is_later: bool, count: int) -> object:
        options = {"_delay": timedelta(hours=1)} if is_later else {}
        new = self.lattice.submit_calls("q", "idle", [((), {})] * count, options)
        self.states.update((job.id, "scheduled" if is_later else "waiting") for job in new)
        self.attempts.update((job.id, 0) for job in new)
        return multiple(*new)

    @rule(target=leases, who=st.integers(0, 1), limit=st.integers(1, 4))
    def claim(self, who: int, limit: int) -> object:
        claimer = self.claimers[who]
        claimed = claimer.claim(limit)
        waiting = [job_id for job_id, state in self.states.items() if state == "waiting"]
        assert {one.id for one in claimed} <= set(waiting)
        assert len(claimed) == min(limit, len(waiting))
        for one in claimed:
            assert one.attempt == self.attempts[one.id]
            self.states[one.id] = "running"
            self.held[one.id] = (claimer.worker_id, claimer.batch)
        return multiple(*[(one, claimer.worker_id, claimer.batch) for one in claimed])

    @rule(lease=consumes(leases), kind=st.sampled_from(Kind), is_cancelled=st.booleans(), is_replayed=st.booleans())
    def settle(self, lease: tuple[Claimed, int, int], kind: Kind, is_cancelled: bool, is_replayed: bool) -> None:
        claimed, worker_id, batch = lease
        if is_cancelled:
            self.cancel(self.lattice.job(claimed.id))
        self._settle(claimed, worker_id, batch, kind)
        if is_replayed:
            self.replay(self.lattice.job(claimed.id))

    def _settle(self, claimed: Claimed, worker_id: int, batch: int, kind: Kind) -> None:
        delay_us = 3_600_000_000 if kind is Kind.RETRY else 0
        settled = self.claimers[0].settle((claimed, outcome(kind, delay_us=delay_us)), batch=batch, worker_id=worker_id)
        if self.held.get(claimed.id) != (worker_id, batch):
            assert settled.refused == [claimed.seq]
            return
        assert settled.refused == []
        del self.held[claimed.id]
        if claimed.id in self.cancelling and kind not in (Kind.SUCCEED, Kind.EXPIRE):
            kind = Kind.CANCEL
        self.cancelling.discard(claimed.id)
        if claimed.id in self.replaying and kind is not Kind.RELEASE:
            self.replaying.remove(claimed.id)
            self.states[claimed.id] = "succeeded" if kind is Kind.SUCCEED else "parked"
            self.attempts[claimed.id] = claimed.attempt + (kind is not Kind.SUCCEED)
            return
        self.states[claimed.id] = ENDS[kind]
        self.attempts[claimed.id] += kind in (Kind.RETRY, Kind.PARK)

    @rule(who=st.integers(0, 1))
    def die(self, who: int) -> None:
        claimer = self.claimers[who]
        orphans = [job_id for job_id, (worker_id, _) in self.held.items() if worker_id == claimer.worker_id]
        found = rescue(claimer.session, claimer.worker_id, claimer.beat())
        assert found is not None
        assert found.leases == len(orphans)
        for job_id in orphans:
            del self.held[job_id]
            is_cancelled, is_charged = job_id in self.cancelling, len(orphans) == 1
            self.cancelling.discard(job_id)
            if job_id in self.replaying and (is_charged or is_cancelled):
                self.replaying.remove(job_id)
                self.states[job_id], self.attempts[job_id] = "parked", 1
            elif is_cancelled:
                self.states[job_id] = "cancelled"
            else:
                self.states[job_id] = "waiting"
                self.attempts[job_id] += is_charged
        claimer.close()
        self.claimers[who] = Claimer(self.lattice)

    @rule()
    def time_passes(self) -> None:
        change(self.lattice, "update lattice_scheduled set due_at = 0 where queue_id = %s", self.claimers[0].queue.id)
        self.claimers[0].promote()
        self.states = {job_id: "waiting" if state == "scheduled" else state for job_id, state in self.states.items()}

    @rule(job=jobs)
    def cancel(self, job: Job) -> None:
        state = self.states[job.id]
        assert job.cancel() == (state in ("waiting", "scheduled", "running"))
        if state == "running":
            self.cancelling.add(job.id)
        elif state in ("waiting", "scheduled"):
            was_replay = job.id in self.replaying
            self.replaying.discard(job.id)
            self.states[job.id] = "parked" if was_replay else "cancelled"
            self.attempts[job.id] = 1 if was_replay else self.attempts[job.id]

    @rule(job=jobs)
    def replay(self, job: Job) -> None:
        entry_id = job.refresh().entry_id
        if self.states[job.id] == "parked" and entry_id is not None:
            self.lattice.dead_letters("q").replay(entry_id)
            self.replaying.add(job.id)
            self.states[job.id], self.attempts[job.id] = "waiting", 0

    @rule(job=jobs)
    def discard(self, job: Job) -> None:
        entry_id = job.refresh().entry_id
        if self.states[job.id] == "parked" and entry_id is not None:
            assert self.lattice.dead_letters("q").discard(entry_id)
            self.states[job.id] = "discarded"

    @invariant()
    def every_invocation_is_in_the_place_that_the_model_says(self) -> None:
        """I1, I2, I8"""
        queue_id = self.claimers[0].queue.id
        found = rows(
            self.lattice,
            """select i.id, i.state, i.attempt,
                   (select count(*) from lattice_ready r where r.queue_id = i.queue_id and r.seq = i.seq),
                   (select count(*) from lattice_scheduled s where s.seq = i.seq),
                   (select count(*) from lattice_lease l where l.seq = i.seq)
               from lattice_invocation i where i.queue_id = %s""",
            queue_id,
        )
        codes = {"succeeded": 1, "parked": 2, "held": 3, "cancelled": 4, "expired": 5, "discarded": 6}
        places = {"waiting": (1, 0, 0), "scheduled": (0, 1, 0), "running": (0, 0, 1)}
        expected = {
            job_id: (codes.get(state, 0), *places.get(state, (0, 0, 0))) for job_id, state in self.states.items()
        }
        assert {str(row[0]): (row[1], *row[3:]) for row in found} == expected
        resting = {job_id for job_id, state in self.states.items() if state in codes and state != "discarded"}
        assert {str(row[0]): row[2] for row in found if str(row[0]) in resting} == {
            job_id: self.attempts[job_id] for job_id in resting
        }
        pinned = sum(state == "parked" for state in self.states.values()) + len(self.replaying)
        assert self.lattice.dead_letters("q").count() == pinned


@pytest.mark.slow
def test_every_invocation_is_always_in_exactly_one_place(store_url: str) -> None:
    """I1, I2, I5, I8, T-01"""
    machine = type("LivesHere", (Lives,), {"store_url": store_url})
    examples = 60 if store_url.startswith("sqlite") else 15
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
