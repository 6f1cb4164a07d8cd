"""The decision. `DeadLetters` counts failures and pins an `Outcome` on the message; the pump writes it.

Dramatiq swallows exceptions of `after_*` hooks and then acknowledges, so a hook that wrote the outcome could lose it.
The options are those of Dramatiq's `Retries`, with the same meaning; `retry_when` and `max_retries` must both allow a retry.
"""

import traceback
from collections.abc import Callable
from typing import Any

import dramatiq
import msgspec
from dramatiq.errors import ActorNotFound, RateLimitExceeded, Retry
from dramatiq.middleware import AgeLimit, GroupCallbacks, Middleware, Shutdown, SkipMessage, TimeLimitExceeded
from dramatiq.threading import Interrupt

from lattice_tasks import clock
from lattice_tasks.broker.actor import misfit
from lattice_tasks.broker.envelope import LatticeMessage
from lattice_tasks.broker.results import StoreRateLimiterBackend
from lattice_tasks.dead_letters.entry import WORKER_DIED, cleaned
from lattice_tasks.errors import LatticeError, Park, StoreUnavailable
from lattice_tasks.store.submits import NewInvocation
from lattice_tasks.store.turns import Claimed
from lattice_tasks.tasks.arguments import decode_body
from lattice_tasks.tasks.retry import MAX_BACKOFF_MS, Policy, backoff_ms, decide
from lattice_tasks.tasks.settle import Kind, Outcome

__all__ = ["Cancelled", "DeadLetters", "LatticeGroupCallbacks"]

_TEXT_LIMIT, _TRACE_LIMIT = 4_096, 32_768
_PAUSE_US = 1_000_000
_SPENT = ("unknown", "time_limit")


class Cancelled(Interrupt):
    """Raised in the thread of a running task that somebody cancelled."""


class DeadLetters(Middleware):
    """Retries failures with back-off and parks what is spent on the queue's dead-letter shelf.

    Args:
        max_retries: n retries are n + 1 executions; None: no limit.
        min_backoff, max_backoff: milliseconds between executions, doubling with jitter.
        retry_when: called with (failures so far, exception); False parks at once.
        max_result_bytes: of a result's JSON; a larger one is dropped with a note.
    """

    def __init__(
        self,
        *,
        max_retries: int | None = 4,
        min_backoff: int = 15_000,
        max_backoff: int = MAX_BACKOFF_MS,
        retry_when: Callable[[int, BaseException], bool] | None = None,
        max_result_bytes: int = 1_048_576,
        unknown_grace_ms: int = 60_000,
    ) -> None:
        self.policy = Policy(max_retries, min_backoff, max_backoff, retry_when)
        self._max_result_bytes = max_result_bytes
        self._unknown_grace_us = unknown_grace_ms * 1_000
        self._encode = msgspec.json.Encoder().encode

    @property
    def actor_options(self) -> set[str]:
        return {"max_retries", "min_backoff", "max_backoff", "retry_when", "throws", "on_retry_exhausted"}

    def pin(
        self, broker: dramatiq.Broker, message: LatticeMessage, result: Any, exception: BaseException | None
    ) -> None:
        """Decide the outcome of an attempt, unless it is decided already."""
        if message.outcome is not None:
            return
        if exception is None and not message.failed:
            message.outcome = self._success(result)
            return
        try:
            message.outcome = self._failure(broker, message, exception)
        except Exception as second:  # noqa: BLE001 - `retry_when`, `throws` and numbers in options are somebody else's
            error, trace = _texts(exception)
            note = f"{error}\n(deciding about a retry failed: {type(second).__name__}: {second})"
            message.outcome = Outcome(Kind.PARK, reason="unknown", error=cleaned(note, _TEXT_LIMIT), traceback=trace)
        if message.outcome.kind is Kind.PARK and message.outcome.reason in _SPENT:
            self._tell_exhausted(broker, message)

    def cut_off(self, message: LatticeMessage, error: Exception) -> None:
        """A hook could not enqueue what follows: a success must not stand without it, or a chain would end silently.

        While the store is away the attempt is repeated; what can never be submitted is parked. A failure stands, and
        says what else failed.
        """
        outcome = message.outcome
        note = cleaned(f"what follows it could not be submitted: {error}", _TEXT_LIMIT)
        if isinstance(error, StoreUnavailable):
            message.follow_ups, message.group = [], None
            message.outcome = Outcome(Kind.RELEASE, delay_us=_PAUSE_US, reason=note, error=note)
        elif outcome is None or outcome.kind is Kind.SUCCEED:
            message.follow_ups, message.group = [], None
            message.outcome = Outcome(Kind.PARK, reason="schema", error=note)
        else:
            outcome.error = cleaned(f"{outcome.error}\n({note})", _TEXT_LIMIT)

    def pin_skipped(self, broker: dramatiq.Broker, message: LatticeMessage) -> None:
        """Decide the outcome of a message that a middleware skipped: acknowledged, expired, or failed by its word."""
        if message.outcome is not None:
            return
        if not message.failed:
            message.outcome = Outcome(Kind.SUCCEED)
        elif _is_too_old(broker, message):
            message.outcome = Outcome(Kind.EXPIRE, error="older than its age limit")
        else:
            why = cleaned(f"skipped by a middleware: {message._exception}", _TEXT_LIMIT)
            message.outcome = Outcome(Kind.PARK, reason="rejected", error=why)

    def _success(self, result: Any) -> Outcome:
        if result is None:
            return Outcome(Kind.SUCCEED)
        try:
            encoded = self._encode(result)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            return Outcome(Kind.SUCCEED, error=cleaned(f"result not storable: {error}", _TEXT_LIMIT))
        if len(encoded) > self._max_result_bytes:
            return Outcome(Kind.SUCCEED, error=f"result not stored: {len(encoded)} bytes")
        return Outcome(Kind.SUCCEED, result=encoded)

    def _failure(self, broker: dramatiq.Broker, message: LatticeMessage, exception: BaseException | None) -> Outcome:
        error, trace = _texts(exception)
        actor = broker.actors.get(message.actor_name)
        if actor is None or isinstance(exception, ActorNotFound):
            return self._unknown_actor(message)
        if message.cancel_reason is not None:
            return Outcome(Kind.CANCEL, error=message.cancel_reason)
        if isinstance(exception, Cancelled):  # meant for the one that this thread ran before
            return Outcome(Kind.RELEASE, reason="interrupted instead of another one")
        if isinstance(exception, Shutdown):
            return Outcome(Kind.RELEASE, reason="interrupted by the shutdown of the worker")
        if isinstance(exception, Park):
            return Outcome(Kind.PARK, reason="rejected", error=cleaned(str(exception), _TEXT_LIMIT), traceback=trace)
        if isinstance(exception, TypeError) and misfit(actor.fn, message.args, message.kwargs) is not None:
            return Outcome(Kind.PARK, reason="schema", error=error, traceback=trace)
        throws = message.options.get("throws") or actor.options.get("throws")
        if exception is None or (throws and isinstance(exception, throws)):
            return Outcome(Kind.PARK, reason="rejected", error=error, traceback=trace)
        policy = self.policy_of(actor, message)
        if isinstance(exception, RateLimitExceeded):  # waiting for a turn is no failure
            wait_us = backoff_ms(0, policy) * 1_000
            return Outcome(Kind.RETRY, delay_us=wait_us, error=error, is_charged=False)
        asked = exception.delay if isinstance(exception, Retry) else None
        verdict = decide(exception, message.claimed.attempt, policy, asked)
        reason = "time_limit" if isinstance(exception, TimeLimitExceeded) else "unknown"
        if verdict.delay_ms is None:
            return Outcome(Kind.PARK, reason=reason, error=error, traceback=trace)
        delay_us = verdict.delay_ms * 1_000
        return Outcome(Kind.RETRY, delay_us=delay_us, reason=reason, error=error, traceback=trace)

    def policy_of(self, actor: dramatiq.Actor, message: LatticeMessage) -> Policy:
        """The retry options of this message: its own over its actor's over the middleware's."""

        def option(name: str, fallback: Any) -> Any:
            return message.options.get(name, actor.options.get(name, fallback))

        return Policy(
            option("max_retries", self.policy.max_retries),
            option("min_backoff", self.policy.min_backoff),
            option("max_backoff", self.policy.max_backoff),
            actor.options.get("retry_when", self.policy.retry_when),
        )

    def spent_by_losses(self, actor: dramatiq.Actor | None, claimed: Claimed) -> Outcome | None:
        """Park what has killed its worker more often than it may; a lost worker counts like a failure."""
        limit = self.policy.max_retries
        if actor is not None:
            limit = actor.options.get("max_retries", limit)
        limit = _options_of(claimed).get("max_retries", limit)
        if not isinstance(limit, int) or claimed.attempt <= limit:
            return None
        return Outcome(Kind.PARK, reason="worker_lost", error=WORKER_DIED, is_charged=False)

    def _unknown_actor(self, message: LatticeMessage) -> Outcome:
        since = message.claimed.unknown_since
        age_us = 0 if since is None else message.claimed_at - since
        error = f"no actor {message.actor_name!r} in this app"
        if age_us > self._unknown_grace_us:
            return Outcome(Kind.PARK, reason="actor_not_found", error=error, is_charged=False)
        return Outcome(Kind.RELEASE, delay_us=_PAUSE_US, reason=error, error=error, is_unknown=True)

    def _tell_exhausted(self, broker: dramatiq.Broker, message: LatticeMessage) -> None:
        actor = broker.get_actor(message.actor_name)
        target = message.options.get("on_retry_exhausted") or actor.options.get("on_retry_exhausted")
        if not target:
            return
        counts = {"retries": message.claimed.attempt, "max_retries": self.policy_of(actor, message).max_retries}
        try:
            broker.get_actor(target).send(message.asdict(), counts)
        except (LatticeError, ActorNotFound) as error:
            self.cut_off(message, error)


class LatticeGroupCallbacks(GroupCallbacks):
    """Group callbacks that cannot be cut or doubled: the group is counted down in the settlement's own transaction."""

    def __init__(
        self,
        rate_limiter_backend: StoreRateLimiterBackend,
        draft: Callable[[dramatiq.Message], NewInvocation],
        *,
        barrier_ttl: int = 366 * 86_400_000,
    ) -> None:
        super().__init__(rate_limiter_backend, barrier_ttl=barrier_ttl)
        self._key_of = rate_limiter_backend.key_of
        self._draft = draft

    def after_process_message(
        self,
        broker: dramatiq.Broker,
        message: Any,
        *,
        result: Any = None,
        exception: BaseException | None = None,
    ) -> None:
        uuid = message.options.get("group_completion_uuid")
        callbacks = message.options.get("group_completion_callbacks")
        if exception is None and uuid and callbacks:
            key = self._key_of(uuid)
            message.group = (key, [self._draft(dramatiq.Message(**one)) for one in callbacks])


def _options_of(claimed: Claimed) -> dict[str, Any]:
    try:
        return decode_body(claimed.body).options
    except msgspec.DecodeError:  # it is parked for that
        return {}


def _texts(exception: BaseException | None) -> tuple[str, str | None]:
    if exception is None:
        return "failed without an exception", None
    try:
        text = str(exception)
    except Exception as second:  # noqa: BLE001 - somebody else's __str__
        text = f"(its text cannot be read: {type(second).__name__})"
    lines = traceback.format_exception(exception, limit=30) if exception.__traceback__ else []
    told = f"{type(exception).__name__}: {text}" if text else type(exception).__name__
    return cleaned(told, _TEXT_LIMIT), cleaned("".join(lines), _TRACE_LIMIT)


def _is_too_old(broker: dramatiq.Broker, message: LatticeMessage) -> bool:
    if not isinstance(message._exception, SkipMessage):
        return False
    limit: float | None = next((one.max_age for one in broker.middleware if isinstance(one, AgeLimit)), None)
    actor = broker.actors.get(message.actor_name)
    limit = message.options.get("max_age") or (actor.options.get("max_age", limit) if actor else limit)
    return limit is not None and 0 < limit <= clock.wall_us() // 1_000 - message.message_timestamp
