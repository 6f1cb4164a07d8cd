"""Who changed what, when and why: an append-only chain of records for each namespace, and the one way to write it.

Each record is hashed together with the hash of the one before, under the lock of the chain's head, so there is no fork,
and no record can be changed, removed or moved without `verify` finding it. Whoever may write to the database can write a
whole new chain: keep the head's hash elsewhere, where that matters. Settings and ids are recorded, never payloads.

The library's own calls record nothing. An operator's room wraps them: `Audit.acting` where the action is one transaction,
`Audit.in_parts` where it is many.
"""

import hashlib
import os
import pwd
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import msgspec

from lattice_tasks import clock
from lattice_tasks.errors import InvalidInput, StoreError
from lattice_tasks.masking import masked
from lattice_tasks.store import audit as rows
from lattice_tasks.store.audit import AuditRow
from lattice_tasks.store.engine import Engine, Session

__all__ = [
    "SYSTEM",
    "Act",
    "Audit",
    "AuditRecord",
    "Fault",
    "Verdict",
    "operator",
    "ranges",
    "record_evictions",
    "record_removals",
]

#: Who did what nobody asked for: evictions from a full shelf.
SYSTEM = "system"

_FORMAT = 1  # of what is hashed
_FIRST = "0" * 64  # the hash before the first record
_MAX_NAME, _MAX_REASON = 255, 2_000
_PAGE = 1_000
_LAST_N = 2**63 - 1


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """One record. `phase`: `done` in one transaction; or `begun`, with the intention in `before`, and later `ended`,
    with `begun` the number of that record. Begun and never ended: it was cut off in the middle."""

    n: int
    at: datetime
    who: str
    verb: str
    target: str
    reason: str | None
    phase: str
    begun: int | None
    before: dict[str, Any]
    after: dict[str, Any]
    previous: str
    hash: str


@dataclass(slots=True)
class Act:
    """What an operator's room fills in: settings and ids, as they were and as they are now."""

    before: dict[str, Any] = field(default_factory=dict)
    after: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Fault:
    """The first record that is wrong: `changed`, `removed`, `reordered`, or `cut_off`, and how that shows."""

    n: int
    kind: str
    detail: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """How many records are as they were written, the hash of the last one, and what is wrong with the next, if anything."""

    records: int
    head: str
    fault: Fault | None


def operator(environment: Mapping[str, str]) -> str:
    """Who acts: LATTICE_OPERATOR, else the user of the operating system at this host. A statement, not a proof."""
    named = _one_line(environment.get("LATTICE_OPERATOR", ""), _MAX_NAME)
    if named:
        return named
    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a user id without a name, as in containers
        user = str(os.getuid())
    return _one_line(f"{user}@{socket.gethostname()}", _MAX_NAME)


def ranges(ids: Sequence[int]) -> str:
    """Ids as a short text: `1-3,7`; empty for none."""
    parts: list[list[int]] = []
    for one in sorted(set(ids)):
        if parts and parts[-1][1] == one - 1:
            parts[-1][1] = one
        else:
            parts.append([one, one])
    return ",".join(f"{first}-{last}" if first < last else f"{first}" for first, last in parts)


def record_evictions(session: Session, evicted: Mapping[tuple[int, str], Sequence[tuple[int, str]]]) -> None:
    """One record for each shelf that lost its oldest letters, in the transaction that evicts, as its last step.

    Args:
        evicted: (queue id, queue) → (entry id, task id) of each letter.
    """
    record_removals(session, evicted, "dlq evict", "the shelf was full")


def record_removals(
    session: Session, gone: Mapping[tuple[int, str], Sequence[tuple[int, str]]], verb: str, why: str
) -> None:
    """The same for letters that left their shelves for any reason of the system's own."""
    by_namespace: dict[int, list[_Draft]] = {}
    for (queue_id, queue), letters in gone.items():
        namespace_id = rows.namespace_of(session, queue_id)
        if namespace_id is not None:
            before = {"letters": [list(letter) for letter in letters]}
            draft = _Draft(verb, queue, SYSTEM, why, before, {"state": "discarded"})
            by_namespace.setdefault(namespace_id, []).append(draft)
    for namespace_id in sorted(by_namespace):
        _append(session, namespace_id, by_namespace[namespace_id])


class Audit:
    """The audit of one namespace.

    Args:
        namespace_id: asked for at each use; opens the store.
        deferring: a block whose wake-ups follow its commit.
    """

    def __init__(
        self, engine: Engine, namespace_id: Callable[[], int], deferring: Callable[[], AbstractContextManager[None]]
    ) -> None:
        self._engine = engine
        self._namespace_id = namespace_id
        self._deferring = deferring

    @contextmanager
    def acting(self, verb: str, target: str, *, who: str, reason: str | None = None) -> Iterator[Act]:
        """What the library changes inside the block and the record of it commit together, or not at all.

        Keep the block short: it holds one transaction. Fill in `before` and `after` of the act.
        """
        namespace_id = self._namespace_id()
        with self._deferring(), self._engine.together() as session:
            act = Act()
            yield act
            _append(session, namespace_id, [_Draft(verb, target, who, reason, act.before, act.after)])

    @contextmanager
    def in_parts(
        self, verb: str, target: str, *, who: str, reason: str | None = None, intended: Mapping[str, Any]
    ) -> Iterator[Act]:
        """A record of what is intended is committed before the block, one of what came of it after; so a crash shows.

        The library commits inside the block as often as it wants. Fill in `after` of the act; what is raised
        leaves its class there as `error`, unless the block has said more.
        """
        namespace_id = self._namespace_id()
        begun = self._write(namespace_id, _Draft(verb, target, who, reason, dict(intended), {}, is_begun=True))
        act = Act()
        try:
            yield act
        except BaseException as error:
            ended = _Draft(verb, target, who, reason, act.before, {"error": type(error).__name__, **act.after}, begun)
            with suppress(StoreError):  # then it shows as begun without an end, which is true
                self._write(namespace_id, ended)
            raise
        self._write(namespace_id, _Draft(verb, target, who, reason, act.before, act.after, begun))

    def list(
        self,
        *,
        since: datetime | None = None,
        who: str | None = None,
        verb: str | None = None,
        target: str | None = None,
        is_unfinished: bool = False,
        limit: int = 50,
    ) -> list[AuditRecord]:
        """Records that fit every filter, newest first.

        Args:
            since: an aware instant by the store's clock.
            is_unfinished: only those that began and never ended; they may still be under way.

        Raises:
            InvalidInput: a naive instant, or a limit below 1.
        """
        if limit < 1:
            raise InvalidInput(f"limit={limit} must be at least 1")
        since_us = None if since is None else clock.to_us(clock.aware(since, "since"))
        namespace_id = self._namespace_id()
        with self._engine.session() as session:
            found = rows.list_rows(
                session,
                namespace_id,
                before_n=_LAST_N,
                since_us=since_us,
                who=who,
                verb=verb,
                target=target,
                is_unfinished=is_unfinished,
                limit=limit,
            )
        return [_record(row) for row in found]

    def count(self) -> int:
        """How many records there are; one look-up."""
        namespace_id = self._namespace_id()
        with self._engine.session() as session:
            return rows.ends_of(session, namespace_id).last_n or 0

    def verify(
        self, advance: Callable[[int], object] = lambda steps: None, kept: tuple[int, str] | None = None
    ) -> Verdict:
        """Walk the whole chain, a page at a time.

        Args:
            advance: told how many records each page had.
            kept: the number of a record and its hash, as they were noted elsewhere: a chain that was written anew has
                another one there.
        """
        namespace_id = self._namespace_id()
        with self._engine.session() as session:
            verdict = _verify(session, namespace_id, advance)
            if kept is None or verdict.fault is not None:
                return verdict
            n, digest = kept
            if [row.hash for row in rows.page(session, namespace_id, n - 1, 1) if row.n == n] == [digest.lower()]:
                return verdict
        return Verdict(
            0, "", Fault(n, "changed", "it is not the record whose hash was kept: the chain was written anew")
        )

    def _write(self, namespace_id: int, draft: "_Draft") -> int:
        with self._engine.session() as session, session.transaction():
            return _append(session, namespace_id, [draft])


@dataclass(frozen=True, slots=True)
class _Draft:
    verb: str
    target: str
    who: str
    reason: str | None
    before: Mapping[str, Any]
    after: Mapping[str, Any]
    begun: int | None = None
    is_begun: bool = False


def _append(session: Session, namespace_id: int, drafts: Sequence[_Draft]) -> int:
    """Chain the drafts on; the number of the last. The head is the last lock that a transaction takes."""
    head = rows.hold_head(session, namespace_id)
    n, previous = head.n, head.hash or _FIRST
    for draft in drafts:
        n += 1
        row = AuditRow(
            n=n,
            at=head.now_us,
            who=_one_line(draft.who, _MAX_NAME),
            verb=_one_line(draft.verb, _MAX_NAME),
            target=_one_line(masked(draft.target), _MAX_NAME),
            reason=_one_line(masked(draft.reason), _MAX_REASON) if draft.reason else None,
            before=_text(draft.before),
            after=_text(draft.after),
            begun=n if draft.is_begun else draft.begun,
            previous=previous,
            hash="",
        )
        row = row._replace(hash=_digest(namespace_id, row))
        rows.append(session, namespace_id, row)
        previous = row.hash
    rows.write_head(session, namespace_id, row)
    return n


def _digest(namespace_id: int, row: AuditRow) -> str:
    """SHA-256 over every field but the hash itself, as one JSON array, which says where each field ends."""
    return hashlib.sha256(msgspec.json.encode([_FORMAT, namespace_id, *row[:-1]])).hexdigest()


def _verify(session: Session, namespace_id: int, advance: Callable[[int], object]) -> Verdict:
    ends = rows.ends_of(session, namespace_id)  # what is appended from now on is not looked at
    n, previous, last = 0, _FIRST, ends.last_n or 0
    fault: Fault | None = None
    while n < last and fault is None:
        found = rows.page(session, namespace_id, n, min(_PAGE, last - n))
        if not found:  # only when somebody deletes while we look
            fault = Fault(n + 1, "removed", "it is missing, and so is all that followed")
        for row in found:
            fault = _fault_of(namespace_id, row, n + 1, previous, last)
            if fault is not None:
                break
            n, previous = row.n, row.hash
        advance(len(found))
    fault = fault or _fault_at_end(ends, n, previous)
    return Verdict(n, previous, None) if fault is None else Verdict(max(0, fault.n - 1), "", fault)


def _fault_of(namespace_id: int, row: AuditRow, expected: int, previous: str, last: int) -> Fault | None:
    if row.n != expected:
        return Fault(expected, "removed", f"it is missing; the next one is record {row.n}")
    if _digest(namespace_id, row) != row.hash:
        origin = next((n for n in range(1, last + 1) if _digest(namespace_id, row._replace(n=n)) == row.hash), None)
        if origin is None:
            return Fault(expected, "changed", "its hash does not fit what it says")
        return Fault(expected, "reordered", f"in its place stands what was written as record {origin}")
    if row.previous != previous and expected == 1:
        return Fault(expected, "removed", "it followed another record, which is missing")
    if row.previous != previous:
        return Fault(expected - 1, "changed", f"record {expected} followed another one than this")
    return None


def _fault_at_end(ends: rows.Ends, n: int, previous: str) -> Fault | None:
    if ends.head_n is None:
        return Fault(n, "removed", "the head of the chain is missing") if n else None
    if ends.head_n > n:
        return Fault(n + 1, "cut_off", f"the head counts {ends.head_n} records, and the last one is {n}")
    if ends.head_n < n:
        return Fault(ends.head_n + 1, "changed", f"the head counts {ends.head_n} records, and there are {n}")
    if (ends.head_hash or _FIRST) != previous:
        return Fault(n, "changed", "the head has another hash for it")
    return None


def _record(row: AuditRow) -> AuditRecord:
    phase = "done" if row.begun is None else "begun" if row.begun == row.n else "ended"
    return AuditRecord(
        n=row.n,
        at=clock.from_us(row.at),
        who=row.who,
        verb=row.verb,
        target=row.target,
        reason=row.reason,
        phase=phase,
        begun=row.begun,
        before=_read(row.before),
        after=_read(row.after),
        previous=row.previous,
        hash=row.hash,
    )


def _text(facts: Mapping[str, Any]) -> str:
    return msgspec.json.encode(dict(facts), order="sorted").decode()


def _read(text: str) -> dict[str, Any]:
    """What was recorded; as it stands, when it is no JSON object any more."""
    try:
        found = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        found = None
    return found if isinstance(found, dict) else {"unreadable": text}


def _one_line(text: str, limit: int) -> str:
    """The text on one line of at most `limit` characters, whatever is not printable replaced."""
    joined = " ".join(text.split())
    return "".join(one if one.isprintable() else "\N{REPLACEMENT CHARACTER}" for one in joined[:limit])
