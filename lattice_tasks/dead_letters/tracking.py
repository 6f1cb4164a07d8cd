"""Counting the failed attempts of anything that is applied, and parking what has failed often enough.

Counters are rows of the store, so "five attempts" are five, however many processes try and restart meanwhile. A failure is
counted in a transaction of its own, after that of the attempt was rolled back. The attempt that reaches the limit parks,
in the transaction that counts it: of several failures at once one parks, and the others begin a new count. What parking
means, and what is applied, is the caller's.
"""

import hashlib
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec

from lattice_tasks.dead_letters.entry import MAX_ERROR_BYTES, cleaned
from lattice_tasks.errors import CallCancelled, InvalidInput, InvalidOperation
from lattice_tasks.keys import require_bound
from lattice_tasks.store import failures, trees
from lattice_tasks.store.engine import Engine, Session

__all__ = [
    "IDLE_US",
    "SCHEMA",
    "UNKNOWN",
    "Attempt",
    "Failure",
    "Identity",
    "Parked",
    "Tracker",
    "digest_of",
    "reason_of",
]

R = TypeVar("R")
P = TypeVar("P")
#: What tells one thing from another: its parts, in order.
Identity = Sequence[str | bytes]

SCHEMA, UNKNOWN = "schema", "unknown"
#: A counter that was not raised for an hour is forgotten.
IDLE_US = 3_600 * 1_000_000

_MAX_SCOPE_BYTES = 2_048
# Taken back by the caller: no failure of what was applied. The other signs of it are no `Exception`, so never caught.
_CANCELLED = (CallCancelled, CancelledError)
# What was applied is malformed, and trying again cannot help.
_MALFORMED = (ValueError, TypeError, KeyError, InvalidOperation, msgspec.MsgspecError)


@dataclass(frozen=True, slots=True)
class Failure:
    """The attempt that reached the limit.

    Attributes:
        reason: `schema` when what was applied is malformed, else `unknown`.
        text: of the error, cleaned, at most 4 KiB; its class when it says nothing.
        attempts: failed ones in all.
    """

    error: Exception
    reason: str
    text: str
    attempts: int


@dataclass(frozen=True, slots=True)
class Parked(Generic[P]):
    """Returned in place of a result: it failed for good. `place` is what `park` returned, and is committed."""

    failure: Failure
    place: P


@dataclass(frozen=True, slots=True)
class Attempt(Generic[R, P]):
    """Something to apply.

    Attributes:
        scope: what its counter belongs to, such as a tree's name: a text of 1 to 2,048 bytes.
        identity: which one it is, within its scope.
        apply: does it, in a transaction of its own; whatever it returns is no failure.
        park: puts it on a shelf, within the transaction of the session it is given. When it raises, its writes are undone.
    """

    scope: str
    identity: Identity
    apply: Callable[[], R]
    park: Callable[[Session, Failure], P]


class Tracker:
    """Applies, counts failures, and parks.

    Args:
        max_attempts: failed attempts in all before something is parked, at least 1: with 1 the first failure parks.

    Raises:
        InvalidInput: it is below 1, or no whole number.
    """

    def __init__(self, engine: Engine, max_attempts: int = 5) -> None:
        if type(max_attempts) is not int or max_attempts < 1:
            raise InvalidInput(f"max_attempts={max_attempts!r} must be a whole number from 1")
        self._engine = engine
        self._max_attempts = max_attempts

    def track(self, attempt: Attempt[R, P]) -> R | Parked[P]:
        """Apply it once.

        Returns:
            What `apply` returned, after its counter was cleared; or, when this failure was the last one allowed, `Parked`.

        Raises:
            InvalidOperation: inside a transaction, whose end would decide what becomes of the count; nothing was applied.
            Exception: of `apply`, below the limit, or when it was cancelled, which counts as nothing; of `park`, then the
                count is kept and the next failure parks at once.
        """
        digest = self._digest_of(attempt)
        self._require_outside()
        try:
            result = attempt.apply()
        except _CANCELLED:
            raise
        except Exception as error:
            parked = self._count(attempt, digest, error)
            if parked is None:
                raise
            return parked
        with self._engine.session() as session:
            failures.clear(session, attempt.scope, digest)
        return result

    def track_all(self, attempts: Sequence[Attempt[R, P]], whole: Callable[[], R]) -> list[R | Parked[P]]:
        """Apply a batch: by one call of `whole` when none of it has failed before, else, or when that fails, one by one.

        Returns:
            [what `whole` returned]; or one answer for each attempt, in order.

        Raises:
            Exception: like `track`, at the first that fails below the limit; the later ones were not attempted.
        """
        things = [(attempt.scope, self._digest_of(attempt)) for attempt in attempts]
        self._require_outside()
        if len(things) > 1 and not self._has_failed(things):
            try:
                return [whole()]
            except _CANCELLED:
                raise
            except Exception:  # noqa: BLE001 - one by one it shows which of them it was
                return self._one_by_one(attempts)
        return self._one_by_one(attempts)

    def _one_by_one(self, attempts: Sequence[Attempt[R, P]]) -> list[R | Parked[P]]:
        answers: list[R | Parked[P]] = []
        for attempt in attempts:
            answer = self.track(attempt)
            answers.append(answer)
        return answers

    def _count(self, attempt: Attempt[R, P], digest: bytes, error: Exception) -> Parked[P] | None:
        """Count a failure, and park at the limit; an error of `park` leaves the count."""
        with self._engine.session() as session:
            with session.transaction():
                attempts = failures.record(session, attempt.scope, digest, IDLE_US)
                if attempts < self._max_attempts:
                    return None
                failure = Failure(error, reason_of(error), _text(error), attempts)
                try:
                    with trees.all_or_nothing(session):
                        place = attempt.park(session, failure)
                        failures.clear(session, attempt.scope, digest)
                        return Parked(failure, place)
                except Exception as broken:  # noqa: BLE001 - raised below, once the count is committed
                    why = broken
            raise why from error

    def _has_failed(self, things: Sequence[tuple[str, bytes]]) -> bool:
        with self._engine.session() as session:
            return failures.any_known(session, things)

    def _digest_of(self, attempt: Attempt[R, P]) -> bytes:
        require_bound(attempt.scope, "scope")
        if not 1 <= len(attempt.scope.encode()) <= _MAX_SCOPE_BYTES:
            raise InvalidInput(f"scope {attempt.scope!r:.40} must be a text of 1 to {_MAX_SCOPE_BYTES} bytes")
        return digest_of(attempt.identity)

    def _require_outside(self) -> None:
        with self._engine.session() as session:
            if session.in_transaction:
                raise InvalidOperation("a transaction is open here; a failure is counted outside of what it rolls back")


def digest_of(identity: Identity) -> bytes:
    """32 bytes that differ when any part differs, or where one part ends and the next begins.

    Raises:
        InvalidInput: there is no part, or one is neither text nor bytes.
    """
    parts = [identity] if isinstance(identity, str | bytes) else list(identity)
    if not parts or not all(isinstance(part, str | bytes) for part in parts):
        raise InvalidInput(f"identity {identity!r:.80} must be at least one part, each of text or bytes")
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
        digest.update(b"%c%d:" % (b"t" if isinstance(part, str) else b"b", len(data)))
        digest.update(data)
    return digest.digest()


def reason_of(error: Exception) -> str:
    """`schema` when what was applied is malformed, else `unknown`."""
    return SCHEMA if isinstance(error, _MALFORMED) else UNKNOWN


def _text(error: Exception) -> str:
    return cleaned(str(error) or type(error).__name__, MAX_ERROR_BYTES)
