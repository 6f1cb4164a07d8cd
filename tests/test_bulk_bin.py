"""The bin: what was discarded, evicted or too old can come back for a while, and nothing goes silently."""

from collections.abc import Iterator
from datetime import timedelta

import pytest

from lattice_tasks import Lattice
from lattice_tasks.errors import Conflict, DeadLetterNotFound, InvalidInput
from lattice_tasks.maintenance import Maintenance
from tests.bulk import Runs, parked
from tests.working import change, done, heard, opened, rows, working

pytestmark = pytest.mark.recycled
DAY_US = 86_400_000_000


@pytest.fixture
def lattice(store_url: str) -> Iterator[Lattice]:
    with opened(store_url) as lattice:
        yield lattice


def chores(lattice: Lattice, *names: str) -> None:
    """Run these chores of maintenance now."""
    maintenance = Maintenance(lattice.settings, lattice.telemetry, lambda ids: None)
    with lattice.engine.session() as session:
        for chore in maintenance._chores:
            if chore.name in names:
                chore.run(session)


def test_a_discarded_letter_comes_back_as_it_was(lattice: Lattice) -> None:
    """Under a new entry id, its task parked again, with a note among its lives; then it can be replayed."""
    runs = Runs(lattice)
    parked(lattice, runs.task, "q", 3)
    shelf = lattice.dead_letters("q")
    before = shelf.get(2)
    shelf.discard(2)
    events = heard(lattice)

    (binned,) = lattice.bin.list("q")
    letter = lattice.bin.restore(binned.id)

    assert (binned.entry_id, binned.task_id, binned.why) == (2, before.task_id, "discarded")
    assert (letter.entry_id, letter.body, letter.error) == (4, before.body, before.error)
    assert [life.ended for life in (*letter.lives, letter)] == ["parked", "restored"]
    assert shelf.get(4).failed_replays == 0
    assert lattice.job(before.task_id).refresh().state == "parked"
    assert lattice.bin.list() == []
    assert [event["before"] for event in events.of("dead_letter.restored")] == [2]
    with pytest.raises(DeadLetterNotFound, match="in the bin"):
        lattice.bin.restore(binned.id)
    with working(lattice):
        assert shelf.replay(4, wait=15).state == "succeeded"
    assert runs.ran == {1: 1}


def test_an_evicted_letter_comes_back_when_there_is_room(store_url: str) -> None:
    """C04: at the bound nobody is evicted for what comes back."""
    with opened(store_url, shelf_capacity=2) as lattice:
        runs = Runs(lattice)
        runs.is_ill = lambda number: True
        with working(lattice, threads=1):
            jobs = runs.task.submit_many([(number,) for number in range(3)])
            done(lattice, "q")
        (binned,) = lattice.bin.list()
        assert (binned.task_id, binned.why) == (jobs[0].id, "evicted")

        with pytest.raises(Conflict, match=r"is full \(2\); nobody is evicted") as refused:
            lattice.bin.restore(jobs[0].id)
        assert refused.value.exit_code == 4
        lattice.dead_letters("q").discard(2)
        assert lattice.bin.restore(jobs[0].id).entry_id == 4

        assert {one.task_id for one in lattice.bin.list()} == {jobs[1].id}


def test_a_letter_whose_task_was_pruned_comes_back_with_it(lattice: Lattice) -> None:
    runs = Runs(lattice)
    parked(lattice, runs.task, "q", 1)
    task_id = lattice.dead_letters("q").get(1).task_id
    lattice.dead_letters("q").discard(1)
    change(lattice, "delete from lattice_invocation")

    letter = lattice.bin.restore(task_id)

    assert lattice.job(task_id).refresh().entry_id == letter.entry_id == 2
    with working(lattice):
        assert lattice.dead_letters("q").replay(2, wait=15).state == "succeeded"


def test_after_its_time_a_letter_is_gone_with_an_event(lattice: Lattice) -> None:
    runs = Runs(lattice)
    parked(lattice, runs.task, "q", 2)
    lattice.dead_letters("q").discard_many([1, 2])
    events = heard(lattice)
    change(lattice, f"update lattice_bin set binned_at = binned_at - {8 * DAY_US} where entry_id = 1")

    old = rows(lattice, "select id from lattice_bin where entry_id = 1")[0][0]
    with pytest.raises(DeadLetterNotFound):
        lattice.bin.restore(old)
    assert [one.entry_id for one in lattice.bin.list()] == [2]
    chores(lattice, "bin")

    assert rows(lattice, "select entry_id from lattice_bin") == [(2,)]
    assert [event["count"] for event in events.of("dead_letter.bin_pruned")] == [1]


def test_no_letter_is_kept_where_the_setting_is_off(store_url: str) -> None:
    with opened(store_url, dlq_restore_days=0, shelf_capacity=1) as lattice:
        runs = Runs(lattice)
        runs.is_ill = lambda number: True
        with working(lattice, threads=1):
            runs.task.submit_many([(1,), (2,)])
            done(lattice, "q")
        lattice.dead_letters("q").discard(2)

        assert rows(lattice, "select count(*) from lattice_bin") == [(0,)]


def test_letters_leave_at_the_age_that_the_queue_says(lattice: Lattice) -> None:
    """By policy only, never silently: event, audit, bin; a letter that is being replayed stays."""
    runs, other = Runs(lattice), Runs(lattice, "other")
    parked(lattice, runs.task, "q", 4)
    parked(lattice, other.task, "other", 1)
    change(lattice, f"update lattice_letter set parked_at = parked_at - {40 * DAY_US} where entry_id <= 3")
    chores(lattice, "aging")
    assert lattice.dead_letters("q").count() == 4
    lattice.dead_letters("q").replay(3)
    events = heard(lattice)

    lattice.bin.set_retention("q", timedelta(days=30))
    chores(lattice, "aging")

    assert [letter.entry_id for letter in lattice.dead_letters("q").list()] == [3, 4]
    assert lattice.dead_letters("other").count() == 1
    assert lattice.bin.retention("q") == timedelta(days=30)
    assert {(one.entry_id, one.why) for one in lattice.bin.list()} == {(1, "aged"), (2, "aged")}
    (told,) = events.of("dead_letter.aged")
    assert (told["shelf"], told["count"], told["entry_ids"]) == ("q", 2, [1, 2])
    (record,) = lattice.audit.list(verb="dlq retention")
    assert (record.who, record.target) == ("system", "q")
    assert [letter[0] for letter in record.before["letters"]] == [1, 2]
    assert lattice.bin.restore(lattice.bin.list()[0].id)
    lattice.bin.set_retention("q", None)
    assert lattice.bin.retention("q") is None
    with pytest.raises(InvalidInput):
        lattice.bin.set_retention("q", timedelta(0))
