"""The one place that says how a command is told which dead letters it means: an option for each field of `Filter`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import wraps
from typing import Any, TypeVar

import click

from lattice_tasks import insights
from lattice_tasks.admin.desk import Desk
from lattice_tasks.admin.options import OneOf, When
from lattice_tasks.dead_letters.entry import REASONS
from lattice_tasks.dead_letters.filters import Filter, filter_of

__all__ = ["OPTIONS", "Narrowed", "narrowing"]

F = TypeVar("F", bound=Callable[..., Any])
_TAGS = ", ".join(REASONS).replace("_", "-")

#: Field of `Filter` → the option that sets it. Verbs that change something keep `--reason` for why they do it.
OPTIONS: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "reason": (("--only", "--reason"), {"type": OneOf(REASONS), "metavar": "TAG", "help": f"Only these: {_TAGS}."}),
    "actor": (("--actor",), {"metavar": "NAME", "help": "Only letters of this actor."}),
    "error_class": (("--error-class",), {"metavar": "NAME", "help": "Only this exception's, without its module."}),
    "key": (("--key",), {"metavar": "TEXT", "help": "Only with this idempotency key."}),
    "group": (("--group",), {"metavar": "GROUP", "help": "Only of this group; see `dlq groups`."}),
    "since": (("--since",), {"type": When(), "metavar": "WHEN", "help": "Parked since: 2h, 7d, 2030-01-31T12:00Z."}),
    "until": (("--until",), {"type": When(), "metavar": "WHEN", "help": "Parked before: as --since."}),
    "worker_lost": (
        ("--worker-lost/--no-worker-lost",),
        {"default": None, "help": "Only those whose last run killed its worker, or only others."},
    ),
    "max_replays": (
        ("--max-replays",),
        {"type": click.IntRange(0), "metavar": "N", "help": "Only letters with at most N failed replays."},
    ),
}


@dataclass(frozen=True, slots=True)
class Narrowed:
    """What was said about the letters that are meant; a span in `since` or `until` counts back from the store's now."""

    said: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """Whether every letter is meant."""
        return not self.said

    def filter(self, desk: Desk) -> Filter:
        """The filter, with ages made instants and a group's first letters made its whole fingerprint.

        Raises:
            GroupNotFound: the namespace has no such group.
            InvalidInput: several groups begin so.
        """
        values = dict(self.said)
        with desk.session() as (session, _):
            now = insights.store_now(session)
        for name in ("since", "until"):
            if isinstance(values.get(name), timedelta):
                values[name] = now - values[name]
        if "group" in values:
            values["group"] = desk.lattice.letter_groups.fingerprint(values["group"])
        return filter_of(**values)


def narrowing(*, changes: bool) -> Callable[[F], F]:
    """Add the filters' options, handed over as one `narrowed`.

    Args:
        changes: the verb changes something, so its `--reason` says why; `--only` narrows by the letters' reason.
    """

    def decorate(function: F) -> F:
        @wraps(function)
        def with_filters(*args: Any, **kwargs: Any) -> Any:
            given = {name: kwargs.pop(name, None) for name in OPTIONS if name != "reason"}
            given["reason"] = kwargs.pop("only", None)
            narrowed = Narrowed({name: value for name, value in given.items() if value is not None})
            return function(*args, narrowed=narrowed, **kwargs)

        for name, (flags, more) in reversed(OPTIONS.items()):
            if name == "reason":
                flags = (*(("--only",) if changes else flags), "only")
            with_filters = click.option(*flags, **more)(with_filters)
        return with_filters  # type: ignore[return-value]

    return decorate
