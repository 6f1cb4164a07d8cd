"""Which dead letters an operator means: one set of filters for every command and every call."""

from datetime import datetime
from typing import Any

import msgspec

from lattice_tasks import clock
from lattice_tasks.dead_letters.entry import REASONS
from lattice_tasks.errors import InvalidInput, LatticeError
from lattice_tasks.store.letters import Chosen

__all__ = ["Filter", "filter_of"]


class Filter(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Letters of a shelf; every field narrows, None does not.

    Attributes:
        reason: one of `REASONS`.
        actor: the task's name.
        error_class: the exception's class, without its module.
        key: the idempotency key, whole.
        group: a fingerprint, or its first letters (at least 6) as `dlq groups` shows it.
        since: parked, for the first time or after a replay, at or after this aware instant.
        until: parked before this aware instant.
        worker_lost: whether its last run ended with the death of its worker.
        max_replays: at most so many replays of it have failed.
    """

    reason: str | None = None
    actor: str | None = None
    error_class: str | None = None
    key: str | None = None
    group: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    worker_lost: bool | None = None
    max_replays: int | None = None

    def __post_init__(self) -> None:
        if self.reason is not None and self.reason not in REASONS:
            raise InvalidInput(f"reason {self.reason!r} is none of {', '.join(REASONS)}")
        for name in ("since", "until"):
            if (instant := getattr(self, name)) is not None:
                clock.aware(instant, name)
        if self.max_replays is not None and self.max_replays < 0:
            raise InvalidInput(f"max_replays={self.max_replays} is negative")
        if self.group is not None and (not 6 <= len(self.group) <= 16 or set(self.group) - set("0123456789abcdef")):
            raise InvalidInput(f"group {self.group!r} is not a fingerprint; `dlq groups` lists them")

    @property
    def is_empty(self) -> bool:
        """Whether it means every letter."""
        return not self.given

    @property
    def given(self) -> dict[str, Any]:
        """The fields that narrow, as keyword arguments."""
        return {name: value for name in self.__struct_fields__ if (value := getattr(self, name)) is not None}

    def chosen(self, last_id: int | None = None) -> Chosen:
        """For the store; `last_id` leaves out what was parked later."""
        values = {name: getattr(self, name) for name in self.__struct_fields__}
        for name in ("since", "until"):
            values[name] = None if values[name] is None else clock.to_us(values[name])
        return Chosen(**values, last_id=last_id)


def filter_of(**named: Any) -> Filter:
    """A filter from keyword arguments.

    Raises:
        InvalidInput: an unknown filter, or a value that it cannot have.
    """
    for name in named:
        if name not in Filter.__struct_fields__:
            raise InvalidInput(f"there is no filter {name!r}; there are {', '.join(Filter.__struct_fields__)}")
    try:
        return msgspec.convert(named, Filter)
    except msgspec.ValidationError as error:
        raise (
            error.__cause__ if isinstance(error.__cause__, LatticeError) else InvalidInput(f"filter: {error}")
        ) from None
