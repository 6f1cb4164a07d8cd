"""How fast a plan goes, as it is typed and as it is shown."""

import re
from typing import Any, Self

import click

from lattice_tasks import clock
from lattice_tasks.admin.screen import Screen, span_of
from lattice_tasks.dead_letters.plan import Plan
from lattice_tasks.tasks.apply import Progress

__all__ = ["Rates", "Share", "Sizes", "Speed"]

_LINE_EVERY_S = 10.0
_SPEED = re.compile(r"(\d+(?:\.\d+)?)(?:/(s|m|h|sec|min))?")
_SECONDS = {"s": 1, "sec": 1, "m": 60, "min": 60, "h": 3_600}


class Speed(click.ParamType[float]):
    """`500`, `500/s`, `30/m`, `100/h`, as a number a second."""

    name = "rate"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        found = _SPEED.fullmatch(str(value).strip())
        if found is None or not float(found[1]):
            self.fail(f"{value!r} is no rate; rates look like 500/s, 30/m or 100/h", param, ctx)
        return float(found[1]) / _SECONDS[found[2] or "s"]


class Sizes(click.ParamType[tuple[int, ...]]):
    """`1,10,100` as whole numbers."""

    name = "sizes"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        parts = [part.strip() for part in str(value).split(",")]
        if not all(part.isascii() and part.isdecimal() and int(part) for part in parts):
            self.fail(f"{value!r} are no sizes of steps; they look like 1,10,100", param, ctx)
        return tuple(map(int, parts))


class Share(click.ParamType[float]):
    """`20%` or `0.2`, as a number from 0 to 1."""

    name = "share"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        text = str(value).strip()
        try:
            share = float(text[:-1]) / 100 if text.endswith("%") else float(text)
        except ValueError:
            share = -1.0
        if not 0 <= share <= 1:
            self.fail(f"{value!r} is no share; shares look like 20% or 0.2", param, ctx)
        return share


class Rates:
    """Shows how far a plan is on standard error: one line that changes on a terminal, a new one every 10 s elsewhere."""

    def __init__(self, screen: Screen, plan: Plan) -> None:
        self._screen = screen
        self._label = f"{plan.verb} {plan.id}"
        self._is_live = screen.err.isatty() and not screen.is_quiet
        self._shown_at = clock.monotonic()
        self._width = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._width:
            self._screen.err.write("\n")
            self._screen.err.flush()

    def __call__(self, progress: Progress) -> None:
        """Show this."""
        text = self._text(progress)
        if self._is_live:
            self._screen.err.write("\r" + text.ljust(self._width))
            self._screen.err.flush()
            self._width = len(text)
        elif clock.monotonic() - self._shown_at >= _LINE_EVERY_S:
            self._shown_at = clock.monotonic()
            self._screen.note(text)

    def _text(self, progress: Progress) -> str:
        through = progress.done + progress.failed_again + progress.skipped
        share = through / progress.total if progress.total else 1
        parts = [f"{through:,}/{progress.total:,} {share:.0%}", f"{progress.done:,} done"]
        parts += [f"{progress.failed_again:,} failed again"] if progress.failed_again else []
        parts += [f"{progress.skipped:,} skipped"] if progress.skipped else []
        parts += [f"{progress.replaying:,} out"] if progress.replaying else []
        if progress.state != "running":
            parts.append(progress.state)
        else:
            parts.append(f"{progress.rate:,.0f}/s" if progress.rate >= 10 else f"{progress.rate:.1f}/s")
            parts += [f"{span_of(round(progress.eta_s))} left"] if progress.eta_s is not None else []
        return f"{self._label}: {', '.join(parts)}"
