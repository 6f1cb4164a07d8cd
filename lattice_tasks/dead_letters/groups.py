"""Groups: dead letters that failed alike, over all queues of a namespace, and what operators said about them.

A group is new until somebody says otherwise. One that was resolved is new again with its next letter; one that was
snoozed sleeps on through its letters, and is new again once its time is over if there were any, else known. All of that
is told when a group is read, by the store's clock: parking knows nothing of it.
"""

import builtins
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum

from lattice_tasks import clock
from lattice_tasks.dead_letters.parking import letter_of, shelf_fifo
from lattice_tasks.errors import GroupNotFound, InvalidInput
from lattice_tasks.store import letters as cards
from lattice_tasks.store import queues as queue_rows
from lattice_tasks.store import triage as rows
from lattice_tasks.store.engine import Engine, Session
from lattice_tasks.store.letters import GroupRow
from lattice_tasks.store.triage import SampleRow, TriageRow
from lattice_tasks.telemetry import Telemetry

__all__ = ["SHOWN_DIGITS", "Group", "GroupState", "Groups", "Sample"]

#: How many digits of a fingerprint a person is shown.
SHOWN_DIGITS = 8

_SAMPLES, _HOURS = 3, 24
_HOUR_US = 3_600_000_000
_LIMITS = {"owner": 255, "note": 2_000, "ticket": 500}


class GroupState(StrEnum):
    """What an operator makes of a group."""

    NEW = "new"
    KNOWN = "known"
    SNOOZED = "snoozed"
    RESOLVED = "resolved"


@dataclass(frozen=True, slots=True)
class Sample:
    """One of a group's newest letters."""

    queue: str
    entry_id: int
    parked_at: datetime


@dataclass(frozen=True, slots=True)
class Group:
    """Letters that failed alike.

    Attributes:
        message: of the error, without what varies.
        live: how many lie on shelves now.
        hits: how many were ever parked, replays that failed again included.
        trend: hits of each of the last 24 hours, the current one last.
        versions: of this package, that parked the samples; only `Groups.get` reads them.
        samples: up to three, newest first.
        reopened: it was resolved, or snoozed, and letters came since.
        until: end of the snooze.
        changed_at, changed_by: who last said something; None: nobody did.
    """

    fingerprint: str
    queues: tuple[str, ...]
    actors: tuple[str, ...]
    error_class: str
    message: str
    live: int
    hits: int
    first_seen: datetime
    last_seen: datetime
    trend: tuple[int, ...]
    samples: tuple[Sample, ...]
    versions: tuple[str, ...] = ()
    state: GroupState = GroupState.NEW
    reopened: bool = False
    until: datetime | None = None
    owner: str | None = None
    note: str | None = None
    ticket: str | None = None
    changed_at: datetime | None = None
    changed_by: str | None = None


class Groups:
    """The groups of one namespace."""

    def __init__(self, engine: Engine, namespace_id: Callable[[], int], telemetry: Telemetry) -> None:
        self._engine = engine
        self._namespace_id = namespace_id
        self._telemetry = telemetry

    def list(self, *, queue: str | None = None, state: str | None = None) -> builtins.list[Group]:
        """Groups, those with most live letters first, then the latest; also those whose letters are gone.

        Args:
            queue: only groups that have had letters there; they are shown whole.
            state: as it is now.

        Raises:
            InvalidInput: no such state.
        """
        wanted = None if state is None else _state_of(state)
        namespace_id = self._namespace_id()
        with self._engine.session() as session:
            found = _read(session, namespace_id)
        fits = (one for one in found if (queue is None or queue in one.queues) and wanted in (None, one.state))
        return sorted(fits, key=lambda one: (-one.live, -one.last_seen.timestamp(), one.fingerprint))

    def get(self, group: str) -> Group:
        """One group, by its fingerprint or the first digits of it, at least 6.

        Raises:
            GroupNotFound: the namespace has no such group.
            InvalidInput: it is no fingerprint, or several begin so.
        """
        namespace_id = self._namespace_id()
        with self._engine.session() as session:
            fingerprint = _the_one(session, namespace_id, group)
            (found,) = (one for one in _read(session, namespace_id) if one.fingerprint == fingerprint)
            versions = _versions(session, {name: key for key, name in _names(session, namespace_id).items()}, found)
        return replace(found, versions=versions)

    def fingerprint(self, group: str) -> str:
        """The whole fingerprint of a group; raises as `get`."""
        namespace_id = self._namespace_id()
        with self._engine.session() as session:
            return _the_one(session, namespace_id, group)

    def mark(
        self,
        group: str,
        *,
        state: str | None = None,
        snooze: timedelta | None = None,
        owner: str | None = None,
        note: str | None = None,
        ticket: str | None = None,
        by: str = "",
    ) -> Group:
        """Say what is known of a group. What is None stays as it is; an empty text is taken away.

        Args:
            state: one of `GroupState`; with `snoozed`, `snooze` says for how long.
            by: who says so.

        Returns:
            The group as it is now.

        Raises:
            GroupNotFound, InvalidInput: no such group, state or text.
        """
        texts = {"owner": owner, "note": note, "ticket": ticket}
        wanted = _checked(state, snooze, texts)
        namespace_id = self._namespace_id()
        with self._engine.session() as session, session.transaction():
            fingerprint = _the_one(session, namespace_id, group)
            for_us = None if snooze is None else clock.us_of(snooze, "snooze")
            rows.write(session, namespace_id, fingerprint, state=wanted, for_us=for_us, by=by, **texts)
        found = self.get(fingerprint)
        self._telemetry.emit("dead_letter.group_marked", group=fingerprint, state=found.state.value, by=by)
        return found


def _state_of(name: str) -> GroupState:
    try:
        return GroupState(name)
    except ValueError:
        raise InvalidInput(f"state {name!r:.40} is none of {', '.join(GroupState)}") from None


def _checked(state: str | None, snooze: timedelta | None, texts: Mapping[str, str | None]) -> GroupState | None:
    wanted = None if state is None else _state_of(state)
    if (wanted is GroupState.SNOOZED) != (snooze is not None):
        raise InvalidInput("a group is snoozed for a time: state snoozed and a span belong together")
    if snooze is not None and snooze <= timedelta(0):
        raise InvalidInput(f"snooze={snooze} is no time at all")
    if wanted is None and all(text is None for text in texts.values()):
        raise InvalidInput("nothing is said about the group: give a state, an owner, a note or a ticket")
    for name, text in texts.items():
        if text is not None and (len(text) > _LIMITS[name] or not text.isprintable()):
            raise InvalidInput(f"{name} must be at most {_LIMITS[name]} printable characters on one line")
    return wanted


def _the_one(session: Session, namespace_id: int, group: str) -> str:
    if not 6 <= len(group) <= 16 or set(group) - set("0123456789abcdef"):
        raise InvalidInput(f"group {group!r:.40} is no fingerprint, nor its first 6 digits; `dlq groups` lists them")
    found = rows.begin_with(session, namespace_id, group)
    if not found:
        raise GroupNotFound(f"no group {group}; `dlq groups --all` lists them")
    if len(found) > 1:
        raise InvalidInput(f"group {group} may be any of {', '.join(found[:5])}; give more digits")
    return found[0]


def _names(session: Session, namespace_id: int) -> dict[int, str]:
    return {row[0]: row[1] for row in queue_rows.list_queues(session, namespace_id)}


def _read(session: Session, namespace_id: int) -> list[Group]:
    """Every group; a handful of statements, however many there are."""
    by_print: dict[str, list[GroupRow]] = {}
    for row in cards.groups(session, namespace_id):
        by_print.setdefault(row.fingerprint, []).append(row)
    newest: dict[str, list[SampleRow]] = {}
    for sample in rows.samples(session, namespace_id, _SAMPLES):
        newest.setdefault(sample.fingerprint, []).append(sample)
    names, said = _names(session, namespace_id), rows.of_namespace(session, namespace_id)
    now_us, hours = cards.hours(session, namespace_id, _HOURS)
    return [
        _group(alike, newest.get(fingerprint, []), names, _trend(alike, now_us, hours), said.get(fingerprint), now_us)
        for fingerprint, alike in by_print.items()
    ]


def _group(
    alike: Sequence[GroupRow],
    newest: Sequence[SampleRow],
    names: Mapping[int, str],
    trend: tuple[int, ...],
    said: TriageRow | None,
    now_us: int,
) -> Group:
    latest = max(alike, key=lambda row: row.last_seen)
    samples = sorted(newest, key=lambda row: (row.parked_at, row.queue_id, row.entry_id), reverse=True)[:_SAMPLES]
    state, reopened = _judged(said, latest.last_seen, now_us)
    return Group(
        fingerprint=latest.fingerprint,
        queues=tuple(sorted(names[row.queue_id] for row in alike if row.queue_id in names)),
        actors=tuple(sorted({row.actor for row in alike})),
        error_class=latest.error_class,
        message=latest.message,
        live=sum(row.live for row in alike),
        hits=sum(row.hits for row in alike),
        first_seen=clock.from_us(min(row.first_seen for row in alike)),
        last_seen=clock.from_us(latest.last_seen),
        trend=trend,
        samples=tuple(
            Sample(names[row.queue_id], row.entry_id, clock.from_us(row.parked_at))
            for row in samples
            if row.queue_id in names
        ),
        state=state,
        reopened=reopened,
        until=clock.from_us(said.until) if said and said.until and state is GroupState.SNOOZED else None,
        owner=(said.owner or None) if said else None,
        note=(said.note or None) if said else None,
        ticket=(said.ticket or None) if said else None,
        changed_at=clock.from_us(said.changed_at) if said else None,
        changed_by=said.changed_by if said else None,
    )


def _judged(said: TriageRow | None, last_seen: int, now_us: int) -> tuple[GroupState, bool]:
    """What was said, unless time or letters have overtaken it: the state now, and whether it was reopened."""
    if said is None:
        return GroupState.NEW, False
    state = GroupState(said.state)
    is_hit = last_seen > said.changed_at
    if state is GroupState.SNOOZED and now_us >= (said.until or 0):
        return (GroupState.NEW, True) if is_hit else (GroupState.KNOWN, False)
    if state is GroupState.RESOLVED and is_hit:
        return GroupState.NEW, True
    return state, False


def _trend(
    alike: Sequence[GroupRow], now_us: int, hours: Mapping[tuple[int, str], Mapping[int, int]]
) -> tuple[int, ...]:
    last = now_us // _HOUR_US
    counted = [hours.get((row.queue_id, row.fingerprint), {}) for row in alike]
    return tuple(sum(one.get(hour, 0) for one in counted) for hour in range(last - _HOURS + 1, last + 1))


def _versions(session: Session, ids: Mapping[str, int], group: Group) -> tuple[str, ...]:
    found = set()
    for sample in group.samples:
        for row in shelf_fifo(session, ids[sample.queue]).get([sample.entry_id]):
            found.add(letter_of(row).version)
    return tuple(sorted(found - {""}))
