"""Redirect rules: a queue or a task was renamed, and its old dead letters shall be replayed under the new name.

Rules are followed to their end, so a name may be renamed twice. They concern replays only: what is submitted goes where
it says. What a letter was, and what it became, is kept on the letter and on its invocation.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from lattice_tasks import clock
from lattice_tasks.errors import Conflict, InvalidInput, RedirectNotFound
from lattice_tasks.queues.record import Queues
from lattice_tasks.store import redirects as rows
from lattice_tasks.store.engine import Engine, Session
from lattice_tasks.store.redirects import RedirectRow

__all__ = ["Redirect", "Redirects", "Router"]

_QUEUE, _ACTOR = "queue", "actor"
_ANY = ""


@dataclass(frozen=True, slots=True)
class Redirect:
    """One rule: letters of the queue or actor `source` are replayed as `target`'s. `queue` narrows an actor's rule."""

    id: int
    kind: str
    queue: str | None
    source: str
    target: str
    created_at: datetime


class Router:
    """The rules as of one moment; a plan's own target comes before them."""

    def __init__(self, rules: Sequence[RedirectRow], to_queue: str | None = None, to_actor: str | None = None) -> None:
        self._targets = {(rule.kind, rule.queue, rule.source): rule.target for rule in rules}
        self._to_queue = to_queue
        self._to_actor = to_actor

    def destination(self, queue: str, actor: str) -> tuple[str, str]:
        """The queue and the actor that a letter of these is replayed as.

        Raises:
            Conflict: the rules lead round in a circle.
        """
        to_actor = self._to_actor or self._follow(_ACTOR, (queue, _ANY), actor)
        return self.queue_of(queue), to_actor

    def queue_of(self, queue: str) -> str:
        """The queue that letters of this one are replayed in."""
        return self._to_queue or self._follow(_QUEUE, (_ANY,), queue)

    def _follow(self, kind: str, scopes: tuple[str, ...], name: str) -> str:
        seen = [name]
        while True:
            found = (self._targets.get((kind, scope, seen[-1])) for scope in scopes)
            target = next((one for one in found if one is not None), None)
            if target is None:
                return seen[-1]
            if target in seen:
                raise Conflict(f"redirects of {kind}s lead round in a circle: {' → '.join([*seen, target])}")
            seen.append(target)


class Redirects:
    """The rules of one namespace."""

    def __init__(self, engine: Engine, queues: Queues, namespace_id: Callable[[], int]) -> None:
        self._engine = engine
        self._queues = queues
        self._namespace_id = namespace_id

    def add(
        self,
        *,
        from_queue: str | None = None,
        to_queue: str | None = None,
        from_actor: str | None = None,
        to_actor: str | None = None,
        queue: str | None = None,
    ) -> Redirect:
        """Replay the dead letters of one queue in another, or those of one actor as another's.

        Args:
            queue: narrows an actor's rule to the letters of one queue; it comes before one for every queue.

        Raises:
            InvalidInput: not one whole pair of names, or a redirect onto itself.
            Conflict: there is a rule for this name, or it would close a circle.
            QueueNotFound: a queue of the rule does not exist.
        """
        kind, source, target = _pair(from_queue, to_queue, from_actor, to_actor)
        if kind == _QUEUE and queue is not None:
            raise InvalidInput("a queue's redirect takes no further queue; it narrows an actor's redirect")
        for name in (from_queue, to_queue, queue):
            if name is not None:
                self._queues.get(name)
        scope = queue or _ANY
        namespace_id = self._namespace_id()
        with self._engine.session() as session, session.transaction():
            row = rows.add(session, namespace_id, kind, scope, source, target)
            if row is None:
                raise Conflict(f"there is a redirect from {kind} {source!r} already; remove it first")
            _refuse_circles(rows.list_all(session, namespace_id))
        return _redirect(row)

    def list(self) -> list[Redirect]:
        """Every rule, the oldest first."""
        namespace_id = self._namespace_id()
        with self._engine.session() as session:
            return [_redirect(row) for row in rows.list_all(session, namespace_id)]

    def remove(self, redirect_id: int) -> None:
        """Remove a rule; what was replayed stays where it is.

        Raises:
            RedirectNotFound: there is none of this id.
        """
        namespace_id = self._namespace_id()
        with self._engine.session() as session:
            if not rows.remove(session, namespace_id, redirect_id):
                raise RedirectNotFound(f"no redirect {redirect_id}; see `lattice-tasks dlq redirects list`")

    def router(self, session: Session, to_queue: str | None = None, to_actor: str | None = None) -> Router:
        """The rules as they are now."""
        return Router(rows.list_all(session, self._namespace_id()), to_queue, to_actor)


def _pair(
    from_queue: str | None, to_queue: str | None, from_actor: str | None, to_actor: str | None
) -> tuple[str, str, str]:
    pairs = [
        (kind, source, target)
        for kind, source, target in ((_QUEUE, from_queue, to_queue), (_ACTOR, from_actor, to_actor))
        if source is not None or target is not None
    ]
    if len(pairs) != 1 or not pairs[0][1] or not pairs[0][2]:
        raise InvalidInput("a redirect leads from a queue to a queue, or from an actor to an actor: name both ends")
    kind, source, target = pairs[0]
    if source == target:
        raise InvalidInput(f"{kind} {source!r} cannot be redirected onto itself")
    return kind, source or "", target or ""


def _refuse_circles(rules: Sequence[RedirectRow]) -> None:
    router = Router(rules)
    scopes = {rule.queue for rule in rules if rule.kind == _ACTOR} | {_ANY}
    for rule in rules:
        if rule.kind == _QUEUE:
            router.queue_of(rule.source)
        else:
            for scope in scopes:
                router.destination(scope, rule.source)


def _redirect(row: RedirectRow) -> Redirect:
    return Redirect(row.id, row.kind, row.queue or None, row.source, row.target, clock.from_us(row.created_at))
