"""Every error that this package raises on purpose.

    LatticeError
    ├── InvalidInput            (also a ValueError)
    │   ├── NotEncodable
    │   ├── TooLarge
    │   ├── TooDeep
    │   ├── NaiveInstant
    │   └── ReservedName
    ├── NotFound                (also a LookupError)
    │   ├── QueueNotFound
    │   ├── TaskNotFound
    │   ├── DeadLetterNotFound
    │   ├── GroupNotFound
    │   ├── PlanNotFound
    │   ├── RedirectNotFound
    │   ├── WorkerNotFound
    │   ├── ActorUnknown
    │   ├── TreeNotFound
    │   ├── KeyNotFound
    │   └── CursorNotFound
    ├── Conflict
    │   ├── QueueExists
    │   ├── TreeExists
    │   ├── OperationMismatch
    │   ├── AlreadyHandled
    │   ├── PlanOutdated
    │   ├── PlanTaken
    │   └── QueueClosed
    ├── QueueFull
    ├── InvalidOperation
    ├── SettingsError
    │   └── AppImportFailed
    ├── StoreError
    │   ├── StoreUnavailable
    │   ├── StoreInvalid
    │   └── SchemaMismatch
    ├── BrokerUnavailable
    ├── CallCancelled
    │   └── CallTimedOut        (also a TimeoutError)
    ├── ResultNotStored
    ├── NotFinished
    │   ├── TaskParked
    │   ├── TaskCancelled
    │   ├── TaskExpired
    │   └── TaskDiscarded
    └── Park

`exit_code` is what the command line returns for the error (`interface.md` of the CLI: 1 failed, 2 usage, 3 not found,
4 conflict, 69 unreachable, 78 configuration).
"""

__all__ = [
    "ActorUnknown",
    "AlreadyHandled",
    "AppImportFailed",
    "BrokerUnavailable",
    "CallCancelled",
    "CallTimedOut",
    "Conflict",
    "CursorNotFound",
    "DeadLetterNotFound",
    "GroupNotFound",
    "InvalidInput",
    "InvalidOperation",
    "KeyNotFound",
    "LatticeError",
    "NaiveInstant",
    "NotEncodable",
    "NotFinished",
    "NotFound",
    "OperationMismatch",
    "Park",
    "PlanNotFound",
    "PlanOutdated",
    "PlanTaken",
    "QueueClosed",
    "QueueExists",
    "QueueFull",
    "QueueNotFound",
    "RedirectNotFound",
    "ReservedName",
    "ResultNotStored",
    "SchemaMismatch",
    "SettingsError",
    "StoreError",
    "StoreInvalid",
    "StoreUnavailable",
    "TaskCancelled",
    "TaskDiscarded",
    "TaskExpired",
    "TaskNotFound",
    "TaskParked",
    "TooDeep",
    "TooLarge",
    "TreeExists",
    "TreeNotFound",
    "WorkerNotFound",
]


class LatticeError(Exception):
    """The root: catch it to catch everything that this package raises on purpose."""

    exit_code = 1


class InvalidInput(LatticeError, ValueError):
    """An argument, option or name is not acceptable; nothing was stored. Trying again does not help."""

    exit_code = 2


class NotEncodable(InvalidInput):
    """A value cannot be written as JSON."""


class TooLarge(InvalidInput):
    """A value is larger than its limit."""


class TooDeep(InvalidInput):
    """A value is nested deeper than its limit."""


class NaiveInstant(InvalidInput):
    """A datetime has no zone, so it names no instant."""


class ReservedName(InvalidInput):
    """A name is kept for the system or for Dramatiq."""


class NotFound(LatticeError, LookupError):
    """The named thing does not exist."""

    exit_code = 3


class QueueNotFound(NotFound):
    """No queue of this name in the namespace."""


class TaskNotFound(NotFound):
    """No invocation of this id in the namespace."""


class DeadLetterNotFound(NotFound):
    """No dead letter of this id on the shelf."""


class GroupNotFound(NotFound):
    """No group of dead letters of this fingerprint in the namespace."""


class PlanNotFound(NotFound):
    """No plan of this name in the namespace."""


class RedirectNotFound(NotFound):
    """No redirect of this id in the namespace."""


class WorkerNotFound(NotFound):
    """No worker of this id."""


class ActorUnknown(NotFound):
    """No worker or app knows an actor of this name."""


class TreeNotFound(NotFound):
    """No tree of this name in the namespace."""


class KeyNotFound(NotFound):
    """No such key in the tree."""


class CursorNotFound(NotFound):
    """No cursor of this id: it was closed, or unused for its idle time."""


class Conflict(LatticeError):
    """The state of the named thing does not allow the change."""

    exit_code = 4


class QueueExists(Conflict):
    """A queue of this name exists already."""


class TreeExists(Conflict):
    """A tree of this name exists already."""


class OperationMismatch(Conflict):
    """The id of an operation was used for another one."""


class AlreadyHandled(Conflict):
    """Somebody else has replayed, discarded or settled it in the meantime."""


class PlanOutdated(Conflict):
    """Letters of the plan are gone or have changed since it was made; nothing was done."""


class PlanTaken(Conflict):
    """Somebody else applies the plan now."""


class QueueClosed(Conflict):
    """The queue accepts no new invocations (draining or archived)."""


class QueueFull(LatticeError):
    """The queue is at its bound; nothing was stored. Trying again later may help."""

    exit_code = 75


class InvalidOperation(LatticeError):
    """The call is not allowed on this kind of thing or at this moment."""


class SettingsError(LatticeError):
    """A setting is missing or wrong; the message names it and where it was read."""

    exit_code = 78


class AppImportFailed(SettingsError):
    """The app module of a worker cannot be imported."""


class StoreError(LatticeError):
    """The store refused a statement."""


class StoreUnavailable(StoreError):
    """The store cannot be reached or did not answer in time. Trying again later helps."""

    exit_code = 69


class StoreInvalid(StoreError):
    """The store is there but cannot be used: not a database, read-only, damaged."""

    exit_code = 78


class SchemaMismatch(StoreError):
    """The schema of the store is older or newer than this code."""

    exit_code = 78


class BrokerUnavailable(LatticeError):
    """RabbitMQ cannot be reached. Work goes on: workers poll the store."""

    exit_code = 69


class CallCancelled(LatticeError):
    """The caller's handle was signalled before the call had happened; nothing was changed."""


class CallTimedOut(CallCancelled, TimeoutError):
    """The time of the caller's handle was over before the call had happened; nothing was changed."""

    exit_code = 75


class ResultNotStored(LatticeError):
    """The task succeeded, but what it returned is too large or no JSON; `task_id` names it. It will not be run again."""

    def __init__(self, task_id: str, detail: str) -> None:
        super().__init__(f"task {task_id} succeeded, but {detail}")
        self.task_id = task_id


class NotFinished(LatticeError):
    """The invocation ended, or rests, without a result; `task_id` names it."""

    def __init__(self, task_id: str, detail: str) -> None:
        super().__init__(f"task {task_id} {detail}")
        self.task_id = task_id
        self.detail = detail


class TaskParked(NotFinished):
    """It failed for good and sits on the dead-letter shelf; replay it or discard it."""


class TaskCancelled(NotFinished):
    """Somebody cancelled it."""


class TaskExpired(NotFinished):
    """Its deadline or age limit passed before it could run."""


class TaskDiscarded(NotFinished):
    """Its dead letter was edited, discarded or evicted."""


class Park(LatticeError):
    """Raised inside a task: do not retry, park me now with this reason (tag `rejected`)."""
