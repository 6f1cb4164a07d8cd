"""The life of one invocation: every state, every event, and which event leads where.

Two rules. Only `step` says what state comes next. A state of an open invocation is a place: a row in `ready`, `scheduled`
or `lease`; only the resting states are written into the invocation itself, as their `code`.
"""

import enum

from lattice_tasks.errors import InvalidOperation

__all__ = ["TRANSITIONS", "Flag", "State", "drawing", "step"]


class State(enum.StrEnum):
    """What a user sees. `NEW` is before the submit has committed."""

    NEW = "new"
    WAITING = "waiting"
    SCHEDULED = "scheduled"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    PARKED = "parked"
    HELD = "held"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    DISCARDED = "discarded"

    @property
    def code(self) -> int:
        """What `invocation.state` holds; 0 for the open states, which are told by their place."""
        return _CODES.get(self, 0)

    @property
    def is_open(self) -> bool:
        """Whether it still waits, sleeps or runs."""
        return self in (State.WAITING, State.SCHEDULED, State.RUNNING)

    @classmethod
    def of(cls, code: int, place: str | None = None) -> "State":
        """The state of a stored code, or, for an open one, of its place (`ready`, `scheduled`, `lease`)."""
        return _BY_CODE[code] if code else _BY_PLACE[place or "ready"]


_CODES = {
    State.SUCCEEDED: 1,
    State.PARKED: 2,
    State.HELD: 3,
    State.CANCELLED: 4,
    State.EXPIRED: 5,
    State.DISCARDED: 6,
}
_BY_CODE = {code: state for state, code in _CODES.items()}
_BY_PLACE = {"ready": State.WAITING, "scheduled": State.SCHEDULED, "lease": State.RUNNING}


class Flag(enum.IntFlag):
    """Marks that travel with an open invocation from place to place."""

    SUSPECT = 1  # its worker died; it runs alone until it has proved harmless
    REPLAY = 2  # exactly one attempt, and its dead letter is pinned meanwhile
    CANCEL = 4  # somebody asked to cancel it while it runs
    STARTED = 8  # the start of a suspect was recorded


S = State
#: (state, event) → state. The README's picture is printed from this table.
TRANSITIONS: dict[tuple[State, str], State] = {
    (S.NEW, "submit"): S.WAITING,
    (S.NEW, "submit_later"): S.SCHEDULED,
    (S.WAITING, "claim"): S.RUNNING,
    (S.WAITING, "cancel"): S.CANCELLED,
    (S.SCHEDULED, "due"): S.WAITING,
    (S.SCHEDULED, "cancel"): S.CANCELLED,
    (S.RUNNING, "succeed"): S.SUCCEEDED,
    (S.RUNNING, "retry"): S.SCHEDULED,
    (S.RUNNING, "release"): S.WAITING,
    (S.RUNNING, "lose_worker"): S.WAITING,
    (S.RUNNING, "expire"): S.EXPIRED,
    (S.RUNNING, "cancel"): S.CANCELLED,
    (S.RUNNING, "park"): S.PARKED,
    (S.RUNNING, "hold"): S.HELD,
    (S.HELD, "park"): S.PARKED,
    (S.PARKED, "replay"): S.WAITING,
    (S.PARKED, "replace"): S.DISCARDED,
    (S.PARKED, "discard"): S.DISCARDED,
    (S.PARKED, "evict"): S.DISCARDED,
    (S.DISCARDED, "restore"): S.PARKED,
}


def step(state: State, event: str) -> State:
    """The state after the event.

    Raises:
        InvalidOperation: this event cannot happen in this state; finished states never change.
    """
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise InvalidOperation(f"an invocation that is {state} cannot {event.replace('_', ' ')}") from None


def drawing() -> str:
    """The table as text, one line a state: `state ── event → state, …`."""
    lines = []
    for state in State:
        ways = [f"{event} → {after}" for (before, event), after in TRANSITIONS.items() if before is state]
        lines.append(f"{state:<10} {'── ' + ', '.join(ways) if ways else '■'}")
    return "\n".join(lines)
