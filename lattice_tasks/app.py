"""`Lattice`: builds the house from settings, and is the only maker. It opens nothing; the first use does."""

import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, ParamSpec, Protocol, TypeVar, overload

from lattice_tasks.audit import Audit
from lattice_tasks.broker.actor import LatticeTask, make_task, require_fit
from lattice_tasks.broker.amqp import AmqpNotifier
from lattice_tasks.broker.broker import LatticeBroker, Parts
from lattice_tasks.broker.default import set_default_broker
from lattice_tasks.broker.notifier import LocalNotifier, Notifier
from lattice_tasks.dead_letters.groups import Groups
from lattice_tasks.dead_letters.shelf import Shelf
from lattice_tasks.fifo import JSON, FifoLanes, LatticeQueue, QueueEntry, Serializer
from lattice_tasks.maintenance import Maintenance, compact_trees, prune
from lattice_tasks.queues.record import Queues
from lattice_tasks.settings import load
from lattice_tasks.store import schema
from lattice_tasks.store.engine import Engine, Session
from lattice_tasks.store.own import require_own
from lattice_tasks.store.queues import open_namespace
from lattice_tasks.tasks.bin import Bin
from lattice_tasks.tasks.edit import Edits
from lattice_tasks.tasks.job import Job, Jobs
from lattice_tasks.tasks.plans import Plans
from lattice_tasks.tasks.redirects import Redirects
from lattice_tasks.tasks.replay import Replays
from lattice_tasks.tasks.submit import Submitter
from lattice_tasks.telemetry import Telemetry, make_log
from lattice_tasks.trees.picture import TreePicture, list_trees
from lattice_tasks.trees.rules import require_name
from lattice_tasks.trees.tree import LatticeTree

__all__ = ["Lattice", "Plugin"]

P = ParamSpec("P")
R = TypeVar("R")


class Plugin(Protocol):
    """What `Lattice.use` takes."""

    def start(self, lattice: "Lattice") -> None:
        """Begin; called once."""

    def stop(self) -> None:
        """End; called by `Lattice.close`."""


class Lattice:
    """One namespace of one store.

    Args:
        store_url, broker_url, namespace: win over the environment and the file; see `settings.Settings`.
        config: a settings file instead of `lattice.toml`.
        set_default: become Dramatiq's global broker, so that `@dramatiq.actor` and `dramatiq app` find it.
        middleware: instead of the default list of Dramatiq middleware.
        settings: any other setting by name.

    Raises:
        SettingsError: a setting is wrong; says which and where it was read.
    """

    def __init__(
        self,
        store_url: str | None = None,
        broker_url: str | None = None,
        namespace: str | None = None,
        *,
        config: str | Path | None = None,
        set_default: bool = True,
        middleware: list[Any] | None = None,
        **settings: Any,
    ) -> None:
        given = {"store_url": store_url, "broker_url": broker_url, "namespace": namespace, **settings}
        self.settings = load(given, config=config)
        self.telemetry = Telemetry(make_log(self.settings.log_level), speaks=self.settings.log_level == "debug")
        self.engine = Engine(self.settings)
        self._opening = threading.Lock()
        self._opened: tuple[int, str] | None = None
        self._plugins: list[Plugin] = []
        self._notifier: Notifier = (
            AmqpNotifier(self.settings, self.telemetry, self._wake_id) if self.settings.broker_url else LocalNotifier()
        )
        self.queues = Queues(self.engine, self.settings.namespace, self._namespace_id, self.telemetry)
        self._jobs = Jobs(self.engine, self.queues, self._namespace_id, self.telemetry)
        self._submitter = Submitter(
            self.engine,
            self.queues,
            self.settings,
            self.telemetry,
            lambda ids: self._notifier.notify(ids),
            lambda ids: self._notifier.announce(ids),
        )
        #: What queues and tasks are called now, for replays of their old dead letters.
        self.redirects = Redirects(self.engine, self.queues, self._namespace_id)
        self._replays = Replays(
            self._jobs, self.redirects, self._namespace_id, self.telemetry, self.settings.shelf_capacity
        )
        self._edits = Edits(self._submitter, lambda *call: require_fit(self.broker, *call))
        #: Dead letters that failed alike, over all queues, and what is known of them.
        self.letter_groups = Groups(self.engine, self._namespace_id, self.telemetry)
        #: Bulk work on dead letters: planned, looked at, applied.
        self.plans = Plans(self.engine, self.settings, self.queues, self._replays, self._submitter.wake)
        self.bin = Bin(self.engine, self.settings, self.queues, self._namespace_id, self.telemetry)
        #: What operators' rooms record their changes with; the library's own calls record nothing.
        self.audit = Audit(self.engine, self._namespace_id, self._submitter.deferring)
        self.broker = LatticeBroker(
            Parts(
                self.engine,
                self.settings,
                self.telemetry,
                self.queues,
                self._submitter,
                self._jobs,
                self._notifier,
                self._namespace_id,
                lambda wake: Maintenance(self.settings, self.telemetry, wake),
            ),
            middleware,
        )
        if set_default:
            set_default_broker(self.broker)

    def __repr__(self) -> str:
        return f"Lattice({self.engine!r}, namespace={self.settings.namespace!r})"

    @property
    def namespace_id(self) -> int:
        """The namespace's id; opens the store, and migrates an empty one.

        Raises:
            SchemaMismatch: the store's schema is older or newer than this code.
            StoreUnavailable, StoreInvalid: it cannot be opened.
        """
        return self._namespace_id()

    @overload
    def task(self, fn: Callable[P, R]) -> LatticeTask[P, R]: ...
    @overload
    def task(
        self, *, queue: str = ..., name: str | None = ..., priority: int = ..., **options: Any
    ) -> Callable[[Callable[P, R]], LatticeTask[P, R]]: ...
    def task(
        self,
        fn: Callable[P, R] | None = None,
        *,
        queue: str = "default",
        name: str | None = None,
        priority: int = 0,
        **options: Any,
    ) -> Any:
        """Declare a task.

        Args:
            queue: where its invocations line up; created by the first submit.
            name: of the actor; the function's name unless given.
            priority: Dramatiq's actor priority inside one worker process, lower first. It is not `_priority`.
            options: Dramatiq's (`max_retries`, `min_backoff`, `time_limit`, …), in Dramatiq's units (milliseconds).

        Raises:
            InvalidInput: a bad queue name or an unknown option.
        """

        def declare(function: Callable[P, R]) -> LatticeTask[P, R]:
            return make_task(
                function,
                broker=self.broker,
                submits=self,
                queue=queue,
                name=name,
                priority=priority,
                options=options,
            )

        return declare if fn is None else declare(fn)

    def submit(
        self,
        queue: str,
        actor: str,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        key: str | None = None,
        priority: int | None = None,
        delay: timedelta | datetime | None = None,
        deadline: timedelta | datetime | None = None,
    ) -> Job:
        """Submit by names, without the function at hand; see `LatticeTask.submit`."""
        options = {"_key": key, "_priority": priority, "_delay": delay, "_deadline": deadline}
        return self.submit_calls(queue, actor, [(tuple(args), kwargs or {})], options)[0]

    def submit_calls(
        self, queue: str, actor: str, calls: Iterable[tuple[tuple, Mapping[str, Any]]], options: Mapping[str, Any]
    ) -> list[Job]:
        """Submit calls (args, kwargs) in one transaction; one handle each, in order."""
        drafts = [
            self._submitter.draft(
                queue,
                actor,
                args,
                kwargs,
                key=options.get("_key"),
                priority=options.get("_priority"),
                delay=options.get("_delay"),
                deadline=options.get("_deadline"),
            )
            for args, kwargs in calls
        ]
        return [
            Job(self._jobs, answer.id, answer.created, answer.args_mismatch)
            for answer in self._submitter.submit(drafts)
        ]

    def job(self, task_id: str) -> Job:
        """The handle of an invocation by its id; nothing is looked up yet."""
        return Job(self._jobs, task_id)

    def dead_letters(self, queue: str) -> Shelf:
        """The dead-letter shelf of a queue.

        Raises:
            QueueNotFound: no such queue.
        """
        record = self.queues.get(queue)
        return Shelf(
            self.engine,
            record.id,
            record.name,
            telemetry=self.telemetry,
            requeue=self._replays.requeue,
            discard_invocations=self._replays.discarder(record.id),
            hold=lambda session: self._replays.hold(session, {record.id: record.name}),
            keeps=self.settings.dlq_restore_days > 0,
            wake=lambda: self._submitter.wake((record.id,)),
            replace=self._edits.replace,
            on_replaced=lambda: self._submitter.tell_of(record.id),
            await_end=self._replays.await_end,
        )

    def fifo(
        self,
        name: str,
        *,
        serializer: Serializer = JSON,
        capacity: int | Callable[[], int | None] | None = None,
    ) -> LatticeQueue[Any]:
        """The FIFO queue of this name in the namespace, which everybody shares who opens it.

        Args:
            serializer: how values become bytes here; JSON unless given.
            capacity: its bound, or a callable that is asked at each enqueue; unless given, the setting `fifo_capacity`
                of this name, else of all.

        Raises:
            InvalidInput, ReservedName: the name or the capacity is not acceptable.
        """
        return self._fifo(name, "", serializer, capacity)

    def fifo_lanes(
        self,
        name: str,
        lanes: int = 8,
        *,
        serializer: Serializer = JSON,
        capacity: int | Callable[[], int | None] | None = None,
    ) -> FifoLanes[Any]:
        """So many FIFO queues side by side; a key always leads to the same one. `capacity` is each lane's; the setting
        is looked up by the lane's name, then by this name.

        Raises:
            InvalidInput, ReservedName: the name, the number or the capacity is not acceptable.
        """
        return FifoLanes(lambda lane: self._fifo(lane, name, serializer, capacity), name, lanes)

    def tree(self, name: str, *, serializer: Serializer = JSON) -> LatticeTree[Any]:
        """An ordered tree of this namespace; its first write registers it.

        Raises:
            InvalidInput: the name is not acceptable. ReservedName: it is a system tree's.
        """
        require_name(name)
        return LatticeTree(
            self.engine,
            name,
            self._namespace_id(),
            site_id=self.settings.site_id,
            serializer=serializer,
            max_bytes=self.settings.max_payload_bytes,
        )

    def trees(self) -> list[TreePicture]:
        """The trees of this namespace, by name; those of the system are not among them."""
        namespace_id = self._namespace_id()
        with self.engine.session() as session:
            return list_trees(session, namespace_id)

    @contextmanager
    def transaction(self, connection: Any) -> Iterator[None]:
        """Open a transaction on your psycopg connection or peewee database; submits inside commit with it, and workers
        are woken after the commit.

        Raises:
            InvalidOperation: another kind of connection, one to another database than the store, not READ COMMITTED, or
                a transaction is open there already.
        """
        self.engine.require_idle(connection)
        self._namespace_id()
        with self._submitter.deferring(), self.engine.beginning(connection) as joined:
            require_own(self.engine, joined, self.settings.namespace, self._open)
            yield

    @contextmanager
    def joining(self, connection: Any) -> Iterator[None]:
        """Submits inside join the transaction that is already open on your connection and follow its fate; workers find
        them by their next poll.

        Raises:
            InvalidOperation: another kind of connection, one to another database than the store, not READ COMMITTED, or
                no transaction is open there.
        """
        with self._submitter.silent(), self.engine.joining(connection) as joined:
            require_own(self.engine, joined, self.settings.namespace, self._open)
            yield

    def use(self, plugin: Plugin) -> None:
        """Start a plugin; `close` stops it."""
        plugin.start(self)
        self._plugins.append(plugin)

    def migrate(self) -> list[str]:
        """Bring the store to this code's schema; names of the migrations that were applied."""
        return schema.migrate(self.engine)

    def prune(self) -> int:
        """Remove every finished invocation past its retention now, and what trees need no more; returns how many of the
        former.
        """
        self._namespace_id()
        with self.engine.session() as session:
            compact_trees(session, self.settings.tree_grace_ms)
            return prune(session, self.settings.retention_ms)

    def close(self) -> None:
        """Stop plugins and close every connection; a closed lattice opens again when it is used."""
        for plugin in self._plugins:
            plugin.stop()
        self._plugins.clear()
        self.broker.close()
        self._opened = None

    @contextmanager
    def _session(self) -> Iterator[Session]:
        """A session on the store, which the first one opens."""
        self._namespace_id()
        with self.engine.session() as session:
            yield session

    def _fifo(
        self, name: str, group: str, serializer: Serializer, capacity: int | Callable[[], int | None] | None
    ) -> LatticeQueue[Any]:
        return LatticeQueue(
            self._session,
            name,
            serializer=serializer,
            capacity=(lambda: self.settings.fifo_capacity_of(name, group)) if capacity is None else capacity,
            on_evicted=lambda gone: self._tell_evicted(name, gone),
            namespace=self.settings.namespace,
        )

    def _tell_evicted(self, queue: str, gone: Sequence[QueueEntry[bytes]]) -> None:
        self.telemetry.emit("fifo.evicted", queue=queue, count=len(gone), entry_ids=[entry.entry_id for entry in gone])

    def _namespace_id(self) -> int:
        return self._open()[0]

    def _wake_id(self) -> str:
        return self._open()[1]

    def _open(self) -> tuple[int, str]:
        opened = self._opened
        if opened is not None:
            return opened
        with self._opening:
            if self._opened is None:
                schema.require_current(self.engine)
                with self.engine.apart() as session:
                    opened = open_namespace(session, self.settings.namespace, uuid.uuid4().hex[:12])
                if self.engine.is_provisional:  # a namespace that is rolled back must not be remembered
                    return opened
                self._opened = opened
            return self._opened
