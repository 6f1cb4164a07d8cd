"""`@lattice.task`: a Dramatiq actor that is submitted with our options and answers with a handle."""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Generic, ParamSpec, Protocol, TypeVar, overload

import dramatiq

from lattice_tasks.errors import InvalidInput
from lattice_tasks.tasks.job import Job

__all__ = ["LatticeTask", "Submits", "make_task", "misfit", "require_fit", "split_options"]

P = ParamSpec("P")
R = TypeVar("R")

_OURS = frozenset({"_key", "_priority", "_delay", "_deadline"})


class Submits(Protocol):
    """What a task needs of the app: writing calls of an actor."""

    def submit_calls(
        self, queue: str, actor: str, calls: Iterable[tuple[tuple, Mapping[str, Any]]], options: Mapping[str, Any]
    ) -> list[Job]:
        """Submit calls (args, kwargs) in one transaction; one handle each, in order."""


class LatticeTask(dramatiq.Actor[P, R], Generic[P, R]):
    """A task: call it to run it here, `submit` it to run it on a worker.

    Dramatiq's own verbs (`send`, `send_with_options`, `message`) work too. Keyword arguments that begin with an underscore
    are options of the submit and never reach the function.
    """

    submits: Submits

    # A ParamSpec takes no further keywords: a call with options is accepted as it is, one without is checked.
    @overload
    def submit(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]: ...
    @overload
    def submit(self, *args: Any, _key: str | None, **kwargs: Any) -> Job[R]: ...
    @overload
    def submit(self, *args: Any, _priority: int | None, **kwargs: Any) -> Job[R]: ...
    @overload
    def submit(self, *args: Any, _delay: timedelta | datetime | None, **kwargs: Any) -> Job[R]: ...
    @overload
    def submit(self, *args: Any, _deadline: timedelta | datetime | None, **kwargs: Any) -> Job[R]: ...
    def submit(self, *args: Any, **kwargs: Any) -> Job[R]:
        """Store one invocation; when this returns it is committed.

        Args:
            _key: idempotency key, unique in the queue; a second submit of it answers with the first invocation.
            _priority: higher is more urgent, in priority queues.
            _delay: timedelta from now, or an aware datetime, before which it does not start.
            _deadline: timedelta from now, or an aware datetime, after which it does not start but expires.

        Raises:
            InvalidInput: an argument is not acceptable; nothing was stored.
            StoreUnavailable: the store did not answer; with a `_key`, trying again is safe.
        """
        plain, options = split_options(kwargs)
        return self.submits.submit_calls(self.queue_name, self.actor_name, [(args, plain)], options)[0]

    def submit_many(
        self,
        calls: Iterable[tuple],
        *,
        _priority: int | None = None,
        _delay: timedelta | datetime | None = None,
        _deadline: timedelta | datetime | None = None,
    ) -> list[Job[R]]:
        """Store one invocation per tuple of positional arguments, in one transaction; handles in the same order.

        Raises:
            InvalidInput: an argument is not acceptable, or more than 10,000 calls; nothing was stored.
        """
        options = {"_priority": _priority, "_delay": _delay, "_deadline": _deadline}
        given = {name: value for name, value in options.items() if value is not None}
        pairs: list[tuple[tuple, dict[str, Any]]] = [(_positional(call), {}) for call in calls]
        return self.submits.submit_calls(self.queue_name, self.actor_name, pairs, given)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the function here and now."""
        return self.fn(*args, **kwargs)


def split_options(kwargs: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The function's own keyword arguments, and ours.

    Raises:
        InvalidInput: an unknown option; `_namespace` always is, for it comes from the credentials.
    """
    if not any(name.startswith("_") for name in kwargs):
        return dict(kwargs), {}
    ours = {name: value for name, value in kwargs.items() if name.startswith("_")}
    unknown = sorted(set(ours) - _OURS)
    if "_namespace" in unknown:
        raise InvalidInput("_namespace cannot be given with a submit: the namespace comes from the credentials")
    if unknown:
        raise InvalidInput(f"unknown option {unknown[0]}; known are {', '.join(sorted(_OURS))}")
    return {name: value for name, value in kwargs.items() if name not in ours}, ours


def make_task(
    fn: Callable[P, R],
    *,
    broker: dramatiq.Broker,
    submits: Submits,
    queue: str,
    name: str | None,
    priority: int,
    options: dict[str, Any],
) -> LatticeTask[P, R]:
    """Declare a task on the broker. Built here, since `dramatiq.actor` refuses queue names like `team/gpu`.

    Raises:
        InvalidInput: an option that no middleware knows.
    """
    unknown = sorted(set(options) - broker.actor_options)
    if unknown:
        raise InvalidInput(
            f"task {name or fn.__name__!r}: unknown option {unknown[0]!r}; known are "
            f"{', '.join(sorted(broker.actor_options))}"
        )
    task: LatticeTask[P, R] = LatticeTask(
        fn,
        broker=broker,
        actor_name=name or fn.__name__,
        queue_name=queue,
        priority=priority,
        options=options,
    )
    task.submits = submits
    return task


def require_fit(broker: dramatiq.Broker, actor: str, args: list[Any], kwargs: Mapping[str, Any]) -> None:
    """Check a call against the signature of the task, when it is declared on this broker.

    Raises:
        InvalidInput: it cannot be called like that; says which argument.
    """
    task = broker.actors.get(actor)
    error = None if task is None else misfit(task.fn, args, kwargs)
    if error is not None:
        raise InvalidInput(f"task {actor!r} cannot be called like that: {error}")


def misfit(fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> TypeError | None:
    """Why the function cannot be called like that; None: it can, or it is a builtin without a signature."""
    try:
        inspect.signature(fn).bind(*args, **kwargs)
    except TypeError as error:
        return error
    except ValueError:
        return None
    return None


def _positional(call: object) -> tuple:
    if not isinstance(call, tuple):
        raise InvalidInput(f"submit_many takes tuples of positional arguments, got {type(call).__name__}: {call!r:.80}")
    return call
