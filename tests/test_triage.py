"""Groups of dead letters: counted over all queues, and what operators say about them, judged when it is read."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from lattice_tasks import clock
from lattice_tasks.dead_letters.groups import Groups
from lattice_tasks.dead_letters.parking import ShelfSpec, park
from lattice_tasks.errors import GroupNotFound, InvalidInput
from lattice_tasks.maintenance import Maintenance
from lattice_tasks.settings import Settings
from lattice_tasks.store import queues as queue_rows
from lattice_tasks.store.engine import Engine, Session, Statement
from lattice_tasks.store.letters import prune_hours
from lattice_tasks.store.schema import migrate
from lattice_tasks.store.triage import _SAMPLES
from lattice_tasks.telemetry import Telemetry, make_log
from tests.letters import Desk, letter

HOUR_MS = 3_600_000


@dataclass
class House:
    """One namespace with the queues `gpu` and `cpu`, at a chosen time of the store's clock."""

    store_url: str
    engine: Engine
    namespace_id: int
    queue_ids: dict[str, int]

    def park(self, queue: str, seqs: Any, **changes: Any) -> None:
        some = [letter(seq, queue=queue, **changes) for seq in seqs]
        with self.engine.session() as session, session.transaction():
            park(session, ShelfSpec(self.queue_ids[queue], 100_000), some)

    @property
    def groups(self) -> Groups:
        return Groups(self.engine, lambda: self.namespace_id, Telemetry(make_log("critical")))

    def later(self, **span: float) -> "House":
        """The same store, as much later."""
        offset = timedelta(**span) // timedelta(milliseconds=1)
        engine = Engine(Settings(store_url=self.store_url, clock_offset_ms=offset))
        return House(self.store_url, engine, self.namespace_id, self.queue_ids)


@pytest.fixture
def house(store_url: str) -> Iterator[House]:
    engine = Engine(Settings(store_url=store_url))
    migrate(engine)
    with engine.session() as session:
        namespace_id, _ = queue_rows.open_namespace(session, "default", "w")
        other_id, _ = queue_rows.open_namespace(session, "other", "x")
        queue_rows.add_queue(session, other_id, "gpu", "fifo", None, None, "evict")
        for name in ("gpu", "cpu"):
            queue_rows.add_queue(session, namespace_id, name, "fifo", None, None, "evict")
        ids = {row[1]: row[0] for row in queue_rows.list_queues(session, namespace_id)}
        other = {"gpu": queue_rows.list_queues(session, other_id)[0][0]}
    House(store_url, engine, other_id, other).park("gpu", [90], error="OtherError: 1")
    yield House(store_url, engine, namespace_id, ids)
    engine.close()


def test_a_fingerprint_is_one_group_over_all_queues_of_a_namespace(house: House) -> None:
    house.park("gpu", range(1, 6))
    house.park("cpu", [6, 7])
    house.park("gpu", [8], error="KeyError: 'x'", actor="report")

    first, second = house.groups.list()

    assert (first.live, first.hits, first.queues, first.actors) == (7, 7, ("cpu", "gpu"), ("train",))
    assert (first.message, first.error_class, first.state, first.reopened) == (
        "ValueError: no <n>",
        "ValueError",
        "new",
        False,
    )
    assert [(one.queue, one.entry_id) for one in first.samples] == [("cpu", 2), ("cpu", 1), ("gpu", 5)]
    assert (second.live, second.actors, second.error_class) == (1, ("report",), "KeyError")
    assert sum(first.trend) == first.trend[-1] + first.trend[-2] == 7
    assert len(first.trend) == 24
    assert [one.live for one in house.groups.list(queue="cpu")] == [7]
    assert house.groups.get(first.fingerprint[:6]).versions == ("0.1.0",)
    assert house.groups.list(queue="nope") == []


def test_the_trend_has_the_last_24_hours_and_older_ones_are_pruned(house: House) -> None:
    house.park("gpu", [1, 2])
    house.later(hours=3).park("gpu", [3])

    (seen,) = house.later(hours=3).groups.list()
    assert (seen.trend[-4], seen.trend[-1], sum(seen.trend)) == (2, 1, 3)
    (seen,) = house.later(hours=26).groups.list()
    assert (seen.trend[0], sum(seen.trend), seen.hits) == (1, 1, 3)

    with house.later(hours=26).engine.session() as session:
        assert prune_hours(session, 24) == 2  # the other namespace's, too


def test_living_workers_forget_hours_of_more_than_a_week_ago(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    house.park("gpu", [1])
    house.later(hours=3).park("gpu", [2])
    now = [clock.monotonic()]
    monkeypatch.setattr(clock, "monotonic", lambda: now[0])
    week = house.later(hours=7 * 24 + 2)
    maintenance = Maintenance(Settings(store_url=house.store_url), Telemetry(make_log("critical")), lambda _ids: None)
    now[0] += 100

    with week.engine.session() as session:
        maintenance.run_due(session)
        kept = session.fetch(Statement("select sum(hits) from lattice_group_hour"))

    assert kept == [(1,)]
    assert [(one.hits, sum(one.trend)) for one in week.groups.list()] == [(2, 0)]


def test_a_resolved_group_is_new_again_with_its_next_letter(house: House) -> None:
    house.park("gpu", [1])
    group = house.groups.list()[0].fingerprint

    marked = house.groups.mark(group[:8], state="resolved", owner="ann", note="fixed in 12", by="ann@host")
    quiet = house.groups.get(group)
    house.later(minutes=1).park("cpu", [2])
    again = house.groups.get(group)

    assert (marked.state, marked.owner, marked.note, marked.changed_by) == (
        "resolved",
        "ann",
        "fixed in 12",
        "ann@host",
    )
    assert (quiet.state, quiet.reopened) == ("resolved", False)
    assert (again.state, again.reopened, again.owner) == ("new", True, "ann")
    assert [one.fingerprint for one in house.groups.list(state="new")] == [group]
    assert house.groups.list(state="resolved") == []


def test_a_snoozed_group_sleeps_through_its_letters_and_wakes_when_its_time_is_over(house: House) -> None:
    house.park("gpu", [1])
    house.park("gpu", [2], error="KeyError: 'x'")
    hit, quiet = sorted(house.groups.list(), key=lambda one: one.error_class, reverse=True)
    for one in (hit, quiet):
        house.groups.mark(one.fingerprint, state="snoozed", snooze=timedelta(hours=2))
    house.later(hours=1).park("gpu", [3])

    asleep = house.later(hours=1).groups.get(hit.fingerprint)
    assert (asleep.state, asleep.live) == ("snoozed", 2)
    assert asleep.until is not None
    awake = house.later(hours=2.1).groups
    assert [(awake.get(one.fingerprint).state, awake.get(one.fingerprint).reopened) for one in (hit, quiet)] == [
        ("new", True),
        ("known", False),
    ]


def test_a_note_alone_changes_no_state_and_nothing_that_was_said_is_lost(house: House) -> None:
    house.park("gpu", [1])
    group = house.groups.list()[0].fingerprint
    groups = house.groups

    assert groups.mark(group, owner="ann").state == "new"
    groups.mark(group, state="known", ticket="https://t/1")
    groups.mark(group, note="see runbook")
    last = groups.mark(group, owner="")

    assert (last.state, last.owner, last.note, last.ticket) == ("known", None, "see runbook", "https://t/1")
    house.later(minutes=1).park("gpu", [2])
    groups.mark(group, state="resolved")
    house.later(minutes=2).park("gpu", [3])
    assert house.later(minutes=3).groups.mark(group, note="hm").reopened is True


def test_a_group_is_counted_on_when_its_letters_are_gone(house: House) -> None:
    house.park("gpu", [1, 2])
    with house.engine.session() as session, session.transaction():
        park(session, ShelfSpec(house.queue_ids["gpu"], 1), [letter(3, error="KeyError: 'x'")])

    gone = next(one for one in house.groups.list() if one.error_class == "ValueError")
    assert (gone.live, gone.hits, gone.samples) == (0, 2, ())


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ({}, "nothing is said"),
        ({"state": "fine"}, "none of new, known, snoozed, resolved"),
        ({"state": "snoozed"}, "snoozed for a time"),
        ({"state": "known", "snooze": timedelta(hours=1)}, "snoozed for a time"),
        ({"state": "snoozed", "snooze": timedelta(0)}, "no time at all"),
        ({"note": "a\nb"}, "note must be"),
        ({"owner": "x" * 256}, "owner must be"),
    ],
)
def test_what_cannot_be_said_is_an_error(house: House, said: dict[str, Any], text: str) -> None:
    house.park("gpu", [1])
    with pytest.raises(InvalidInput, match=text):
        house.groups.mark(house.groups.list()[0].fingerprint, **said)
    assert house.groups.list()[0].changed_at is None


def test_a_group_that_is_not_there_or_not_one_is_an_error(house: House) -> None:
    house.park("gpu", [1])
    with pytest.raises(GroupNotFound, match="no group 000000"):
        house.groups.get("000000")
    with pytest.raises(InvalidInput, match="no fingerprint"):
        house.groups.get("zzzzzz")
    with pytest.raises(InvalidInput, match="no fingerprint"):
        house.groups.get("abc")


class Meter:
    """Counts the statements that are fetched, and the rows that come back."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.statements = self.rows = 0
        fetch = Session.fetch

        def counted(session: Session, statement: Statement, params: Any = ()) -> list[tuple]:
            found = fetch(session, statement, params)
            self.statements += 1
            self.rows += len(found)
            return found

        monkeypatch.setattr(Session, "fetch", counted)

    def of(self, act: Callable[[], object]) -> tuple[int, int]:
        """(statements, rows) of one call."""
        self.statements = self.rows = 0
        act()
        return self.statements, self.rows


def test_what_a_look_costs_does_not_grow_with_the_letters(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups: a handful of statements, rows by the group. A page: the rows that it shows."""
    shelf = Desk(house.engine, house.queue_ids["gpu"]).shelf
    kinds = [f"E{chr(97 + kind // 26)}{chr(97 + kind % 26)}" for kind in range(200)]

    def park_round(number: int) -> None:
        some = [letter(number * 200 + at, error=f"{kind}: no", key=None) for at, kind in enumerate(kinds, 1)]
        with house.engine.session() as session, session.transaction():
            park(session, ShelfSpec(house.queue_ids["gpu"], 100_000), some)

    for number in range(3):
        park_round(number)
    meter = Meter(monkeypatch)
    few = meter.of(house.groups.list)
    for number in range(3, 10):
        park_round(number)

    assert meter.of(house.groups.list) == few
    assert few[0] <= 6
    assert few[1] <= 200 * (1 + 3 + 2) + 10
    last = shelf.list(limit=1, after=900)[0].entry_id
    for filters in ({}, {"error_class": "Eaa"}, {"group": house.groups.list()[0].fingerprint}, {"after": last}):
        statements, rows = meter.of(partial(shelf.list, limit=5, **filters))
        assert (statements <= 3, rows <= 12) == (True, True), filters


def test_samples_are_found_along_the_index_of_groups(house: House) -> None:
    """With empty statistics, as after a crash: nobody reads every letter to show three of a group."""
    house.park("gpu", range(1, 400))
    explain = Statement("explain " + _SAMPLES.postgres, sqlite="explain query plan " + _SAMPLES.sqlite)

    with house.engine.session() as session:
        plan = "\n".join(str(row) for row in session.fetch(explain, (3, house.namespace_id)))

    assert plan.count("lattice_letter_group") >= 1
    assert "Seq Scan on lattice_letter" not in plan
    assert "SCAN l " not in plan
