"""Every reason tag is really produced, by what it stands for."""

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest

from lattice_tasks import Lattice, Park
from lattice_tasks.dead_letters.entry import REASONS, DeadLetter
from lattice_tasks.tasks.claim import rescue
from tests.claimers import Claimer
from tests.working import boot_time_limit, change, done, heard, opened, rows, spin, stored, until, until_state, working

pytestmark = pytest.mark.recycled

INVOCATION = """insert into lattice_invocation (id, queue_id, actor, body, priority, submitted_at, state, attempt)
    values (%s, %s, %s, %s, 0, 0, 0, 0)"""


@pytest.fixture
def lattice(store_url: str) -> Iterator[Lattice]:
    with opened(store_url) as lattice:
        yield lattice


def letters(lattice: Lattice, queue: str = "q") -> dict[str, DeadLetter]:
    return {letter.task_id: letter for letter in lattice.dead_letters(queue).list()}


def stored_by_hand(lattice: Lattice, body: bytes, actor: str = "take") -> str:
    """An invocation as another version, or a damaged store, may hold it."""
    task_id, queue_id = str(uuid4()), lattice.queues.ensure("q").id
    change(lattice, INVOCATION, task_id, queue_id, actor, body)
    (seq,) = rows(lattice, "select max(seq) from lattice_invocation")[0]
    change(lattice, "insert into lattice_ready values (%s, %s, 0, 0, 0)", queue_id, seq)
    return task_id


def test_unknown_is_any_other_exception(lattice: Lattice) -> None:
    @lattice.task(queue="q", max_retries=0)
    def fail() -> None:
        raise OSError("disk on fire")

    job = fail.submit()
    with working(lattice):
        until_state(job, "parked")
    assert letters(lattice)[job.id].reason == "unknown"


UNDECODABLE = [
    b"",
    b"\x80\x81",
    b"null",
    b"[]",
    b"17",
    b'{"args":1}',
    b'{"args":[],"kwargs":[]}',
    b'{"options":{"x":}}',
    b'{"args":["\\ud800"]}',
    b"[" * 10_000,
    b'{"args":' + b"[" * 5_000 + b"]" * 5_000 + b"}",
    b"\x00" * 100,
]


def test_schema_is_a_body_that_cannot_be_decoded_kept_byte_for_byte(lattice: Lattice) -> None:
    """C13, reliability 22: parked once, and a good one behind it runs at once."""
    ran: list[int] = []

    @lattice.task(queue="q")
    def take(*args: Any) -> None:
        ran.append(1)

    bad = [stored_by_hand(lattice, body) for body in UNDECODABLE]
    good = take.submit(1)
    events = heard(lattice)
    with working(lattice, threads=1):
        until_state(good, "succeeded")
        for task_id in bad:
            until_state(lattice.job(task_id), "parked")

    parked = letters(lattice)
    assert [parked[task_id].body for task_id in bad] == UNDECODABLE
    assert {(letter.reason, letter.attempts) for letter in parked.values()} == {("schema", 0)}
    assert all("undecodable" in letter.error for letter in parked.values())
    assert (ran, len(parked), events.of("worker.failing")) == ([1], len(bad), [])


def test_schema_is_also_a_call_that_does_not_fit_the_function(lattice: Lattice) -> None:
    @lattice.task(queue="q", max_retries=5)
    def take(x: int) -> None: ...

    calls: list[tuple[Any, Any]] = [((), {}), ((1, 2, 3), {}), ((1,), {"y": 2}), ((1,), {"x": 2})]
    for args, kwargs in calls:
        lattice.submit("q", "take", args, kwargs)
    with working(lattice):
        done(lattice, "q")
    assert [(letter.reason, letter.attempts) for letter in letters(lattice).values()] == [("schema", 1)] * 4


def test_a_type_error_of_the_task_itself_is_a_failure_like_any_other(lattice: Lattice) -> None:
    @lattice.task(queue="q", max_retries=1, min_backoff=1, max_backoff=1)
    def take(x: int) -> None:
        raise TypeError("mine")

    job = take.submit(1)
    with working(lattice):
        until_state(job, "parked")
    assert (letters(lattice)[job.id].reason, letters(lattice)[job.id].attempts) == ("unknown", 2)


def test_actor_not_found_comes_after_the_grace_and_not_before(store_url: str) -> None:
    """Rolling deploys: a worker that knows the actor may come within the grace."""
    with opened(store_url, unknown_actor_grace_ms=60_000) as lattice:

        @lattice.task(queue="q")
        def known() -> None: ...

        early, late, found = (lattice.submit("q", name) for name in ("early", "late", "found"))
        behind = known.submit()
        events = heard(lattice)
        with working(lattice):
            until_state(behind, "succeeded")
            until(lambda: rows(lattice, "select count(*) from lattice_invocation where unknown_since > 0") == [(3,)])
            assert lattice.dead_letters("q").count() == 0
            change(lattice, f"update lattice_invocation set unknown_since = 1 where id = '{late.id}'")
            lattice.task(queue="q", name="found")(lambda: None)
            change(lattice, "update lattice_scheduled set due_at = 0")
            until_state(late, "parked")
            until_state(found, "succeeded")
            until_state(early, "scheduled")

        assert {task_id: letter.reason for task_id, letter in letters(lattice).items()} == {late.id: "actor_not_found"}
        assert letters(lattice)[late.id].attempts == 0
        assert early.refresh().attempt == 0
        assert {event["task_id"] for event in events.of("task.released")} == {early.id, late.id, found.id}


def test_worker_lost_is_what_has_killed_its_worker_more_often_than_it_may(lattice: Lattice) -> None:
    """T-05, reliability 22: the budget is that of failures."""
    ran: list[int] = []

    @lattice.task(queue="q", max_retries=2)
    def deadly() -> None:
        ran.append(1)

    job = deadly.submit()
    for death in (1, 2, 3):
        claimer = Claimer(lattice)
        assert claimer.claim_one().attempt == death - 1
        with lattice.engine.session() as session:
            assert rescue(session, claimer.worker_id, claimer.beat()) is not None
        claimer.close()
        assert (job.refresh().state, job.refresh().attempt) == ("waiting", death)
    with working(lattice):
        until_state(job, "parked")

    letter = letters(lattice)[job.id]
    assert (letter.reason, letter.attempts) == ("worker_lost", 3)
    assert "died while running it" in letter.error
    assert ran == []


def test_a_suspect_within_its_budget_runs_and_is_cleared(lattice: Lattice) -> None:
    @lattice.task(queue="q", max_retries=2)
    def harmless(number: int) -> int:
        return number

    jobs = harmless.submit_many([(number,) for number in range(5)])
    claimer = Claimer(lattice)
    claimer.claim(5)
    with lattice.engine.session() as session:
        rescue(session, claimer.worker_id, claimer.beat())
    claimer.close()
    assert {flags for (flags,) in rows(lattice, "select flags from lattice_ready")} == {1}
    with working(lattice):
        assert [job.result(timeout=15) for job in jobs] == list(range(5))
    assert {job.refresh().attempt for job in jobs} == {0}


def test_time_limit_is_a_task_that_ran_too_long_too_often(lattice: Lattice) -> None:
    @lattice.task(queue="q", time_limit=60, max_retries=1, min_backoff=1, max_backoff=1)
    def slow() -> None:
        spin()

    job = slow.submit()
    boot_time_limit(lattice)
    with working(lattice):
        until_state(job, "parked")
    assert (letters(lattice)[job.id].reason, letters(lattice)[job.id].attempts) == ("time_limit", 2)


def test_oversized_is_a_stored_payload_beyond_the_limit(store_url: str) -> None:
    """D-96 for tasks: another version, or a larger limit, wrote it."""
    ran: list[int] = []
    with opened(store_url) as large:
        job = large.submit("q", "take", ("x" * 5_000,))
    with opened(store_url, max_payload_bytes=4_096) as lattice:

        @lattice.task(queue="q")
        def take(text: str) -> None:
            ran.append(1)

        with working(lattice):
            until_state(lattice.job(job.id), "parked")
        letter = letters(lattice)[job.id]
        assert (letter.reason, len(letter.body), letter.attempts) == ("oversized", 5_013, 0)
        assert "5013 bytes, the limit is 4096" in letter.error
    assert ran == []


def test_rejected_is_what_the_task_says_itself(lattice: Lattice) -> None:
    @lattice.task(queue="q", max_retries=9)
    def refuse() -> None:
        raise Park("not for me")

    job = refuse.submit()
    with working(lattice):
        until_state(job, "parked")
    letter = letters(lattice)[job.id]
    assert (letter.reason, letter.error, letter.attempts) == ("rejected", "not for me", 1)


def test_each_tag_is_told_with_the_events(lattice: Lattice) -> None:
    """D-90 for tasks: one event for each parked entry, with its reason."""

    @lattice.task(queue="q", max_retries=0)
    def fail() -> None:
        raise ValueError

    @lattice.task(queue="q")
    def refuse() -> None:
        raise Park("no")

    events = heard(lattice)
    jobs = [fail.submit(), refuse.submit(), lattice.submit("q", "fail", (1, 2))]
    stored_by_hand(lattice, b"[]", "fail")
    with working(lattice):
        done(lattice, "q")

    told = events.of("dead_letter.enqueued")
    assert sorted(event["reason"] for event in told) == ["rejected", "schema", "schema", "unknown"]
    assert {event["entry_id"] for event in told} == {letter.entry_id for letter in lattice.dead_letters("q").list()}
    assert len(events.of("task.parked")) == len(told) == lattice.dead_letters("q").count() == 4
    assert all(job.refresh().entry_id for job in jobs)
    assert stored(lattice, "lease") == 0


def test_this_file_shows_every_tag() -> None:
    shown = {name.removeprefix("test_").split("_is_")[0].split("_comes_")[0] for name in globals() if "test_" in name}

    assert shown >= set(REASONS)
