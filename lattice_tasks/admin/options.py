"""The options that many commands share, and the kinds of value they take.

Global options may stand before or after the verb. Verbs that change something take `--yes`, `--dry-run` and `--reason`.
"""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import wraps
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from lattice_tasks.admin.screen import FORMATS

__all__ = ["Change", "JsonText", "Noun", "OneOf", "Seconds", "Verb", "When", "changing", "global_options"]

F = TypeVar("F", bound=Callable[..., Any])
_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_SPAN = re.compile(r"(\d+(?:\.\d+)?)(ms|[smhdw])")


def _remember(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    """Put a global option where the desk finds it; the one that stands last wins."""
    if value is not None and value != 0:
        context.obj.given[parameter.name] = value


def global_options(hidden: bool = False) -> list[click.Option]:
    """A fresh set; hidden where it stands for convenience only. Without a default: what is absent is not given."""

    def option(*names: str, text: str, **more: Any) -> click.Option:
        variable = "LATTICE_" + more.pop("variable", names[-1].removeprefix("--").replace("-", "_").upper())
        reads = None if hidden or variable.removeprefix("LATTICE_") in _READ_BY_SETTINGS else variable
        return click.Option(
            names,
            help=f"{text}  [{variable}]",
            hidden=hidden,
            expose_value=False,
            callback=_remember,
            envvar=reads,
            allow_from_autoenv=False,
            **more,
        )

    return [
        option("--store-url", metavar="URL", text="sqlite:///file.db or postgresql://…"),
        option("--broker-url", metavar="URL", text="amqp://…, several separated by ';'; empty: none, workers poll."),
        option("--namespace", metavar="NAME", text="Whose queues these are; default: default."),
        option("--config", metavar="FILE", text="Settings file; default: lattice.toml if it is there."),
        option("-o", "--output", type=click.Choice(FORMATS), text="How data is written; default: table."),
        option("--color", type=click.Choice(("auto", "always", "never")), text="Default: auto, and NO_COLOR counts."),
        option("-q", "--quiet", is_flag=True, default=None, text="Only data and errors."),
        option("-v", "--verbose", count=True, text="Log lines, too; -vv for more; a traceback for what is unforeseen."),
    ]


_READ_BY_SETTINGS = ("STORE_URL", "BROKER_URL", "NAMESPACE", "CONFIG")


class Verb(click.Command):
    """A command that takes the global options, too."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params += global_options(hidden=True)
        self.epilog = self.epilog or "Global options, such as -o json, may stand here too: see `lattice-tasks --help`."


class Noun(click.Group):
    """A group of verbs; alone it prints its help."""

    command_class = Verb

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params += global_options(hidden=True)


@dataclass(frozen=True, slots=True)
class Change:
    """What the caller said about a change: go ahead unasked, only show, and why."""

    yes: bool
    is_dry: bool
    reason: str | None


def changing(function: F) -> F:
    """Add `--yes`, `--dry-run` and `--reason`, handed over as one `change`."""

    @wraps(function)
    def with_change(*args: Any, yes: bool, dry_run: bool, reason: str | None, **kwargs: Any) -> Any:
        return function(*args, change=Change(yes, dry_run, reason), **kwargs)

    for decorate in (
        click.option("--reason", metavar="TEXT", help="Why: kept in the audit, with your name."),
        click.option("--dry-run", is_flag=True, help="Show what would be done, and do nothing."),
        click.option("--yes", "-y", is_flag=True, help="Do not ask."),
    ):
        with_change = decorate(with_change)
    return with_change  # type: ignore[return-value]


class When(click.ParamType[timedelta | datetime]):
    """A span (`30`, `90s`, `1h30m`, `2d`; a bare number is seconds) or an instant with its zone (ISO 8601)."""

    name = "when"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> timedelta | datetime:
        if not isinstance(value, str):
            return value
        text = value.strip()
        if text.startswith("-"):
            self.fail(f"{value!r} is negative", param, ctx)
        parts = _SPAN.findall(text)
        if re.fullmatch(r"\d+(\.\d+)?", text):
            parts = [(text, "s")]
        elif "".join(number + unit for number, unit in parts) != text or not parts:
            return self._instant(value, param, ctx)
        try:
            return timedelta(seconds=sum(float(number) * _UNITS[unit] for number, unit in parts))
        except OverflowError:
            self.fail(f"{value!r} is too long", param, ctx)

    def _instant(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        try:
            instant = datetime.fromisoformat(value.strip())
        except ValueError:
            self.fail(
                f"{value!r} is neither a span like 90s or 1h30m nor an instant like 2030-01-31T12:00Z", param, ctx
            )
        if instant.tzinfo is None:
            self.fail(f"{value!r} has no time zone; add Z or an offset like +02:00", param, ctx)
        return instant


class Seconds(When):
    """A span, handed over as seconds."""

    name = "span"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        span = super().convert(value, param, ctx)
        if not isinstance(span, timedelta):
            self.fail(f"{value!r} is an instant; a span is needed here, such as 90s or 1h30m", param, ctx)
        return span.total_seconds()


class OneOf(click.ParamType[str]):
    """One name of a fixed set: shown dashed, also taken underscored."""

    name = "name"

    def __init__(self, names: Sequence[str]) -> None:
        self._names = tuple(names)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        name = str(value).replace("-", "_")
        if name not in self._names:
            self.fail(f"{value!r} is none of {', '.join(map(_dashed, self._names))}", param, ctx)
        return name

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(name) for name in map(_dashed, self._names) if name.startswith(incomplete)]


def _dashed(name: str) -> str:
    return name.replace("_", "-")


class JsonText(click.ParamType[Any]):
    """JSON of one kind, `list` or `dict`."""

    name = "json"

    def __init__(self, kind: type, called: str) -> None:
        self._kind = kind
        self._called = called

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            decoded = json.loads(value, parse_constant=lambda name: self.fail(f"{name} is no JSON", param, ctx))
        except (ValueError, RecursionError) as error:
            self.fail(f"{value[:60]!r} is not JSON: {error}", param, ctx)
        if type(decoded) is not self._kind:
            self.fail(f"{value[:60]!r} is not {self._called}", param, ctx)
        return decoded
