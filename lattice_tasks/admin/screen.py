"""What a command shows: records on standard output in the form that was asked for, everything else on standard error.

A record is a mapping of snake_case fields. JSON keeps every field and every value as it is; a table shows chosen columns
for a person: how long ago, states dashed, whatever a task wrote made visible.
"""

import csv
import io
import json
import os
import shutil
import traceback
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TextIO

import click
import wcwidth

from lattice_tasks.admin.escape import json_safe, one_line, spreadsheet_safe, visible

__all__ = ["FORMATS", "Record", "Screen", "since", "span_of"]

FORMATS = ("table", "json", "jsonl", "csv")
Record = Mapping[str, Any]

#: Fields whose values are names of a fixed set: dashed in a table, underscored everywhere else.
_ENUMS = {"state", "kind", "reason", "outcome", "dlq_on_full", "severity", "code", "engine"}
_COLOURS = {
    "succeeded": "green", "active": "green", "ok": "green", "replayed": "green", "discarded": "yellow",
    "running": "cyan", "scheduled": "blue", "waiting": None, "paused": "yellow", "draining": "yellow",
    "held": "red", "parked": "red", "error": "red", "failed": "red", "warning": "yellow", "cancelled": "yellow",
    "expired": "yellow", "info": "blue",
    "new": "red", "reopened": "red", "snoozed": "blue", "resolved": "green",
}  # fmt: skip
#: What a table calls a field: `attempt` counts the failures that were charged, so a first success has 0.
_LABELS = {"attempt": "failures"}
_GAP = "  "
_OURS = f"{os.sep}lattice_tasks{os.sep}"
_LEAST_TEXT_CELLS = 20


def since(instant: datetime, now: datetime) -> str:
    """`12s ago`, `in 3m 20s`: two units at most, no more exact than a person wants."""
    seconds = round((now - instant).total_seconds())
    if seconds == 0:
        return "now"
    span = span_of(abs(seconds))
    return f"{span} ago" if seconds > 0 else f"in {span}"


def span_of(seconds: int) -> str:
    """`12s`, `3m 20s`: two units at most."""
    units = (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))
    for at, (unit, size) in enumerate(units):
        if seconds >= size:
            rest = "" if at + 1 == len(units) else f" {seconds % size // units[at + 1][1]}{units[at + 1][0]}"
            return f"{seconds // size}{unit}" + ("" if rest.startswith(" 0") else rest)
    return "0s"


@dataclass
class Screen:
    """Two streams and how to write on them. `now` is the store's clock once a command has asked for it."""

    out: TextIO
    err: TextIO
    form: str = "table"
    colour: str = "auto"
    is_quiet: bool = False
    now: datetime | None = None
    _is_closed: bool = False

    def many(
        self, records: Sequence[Record], fields: Sequence[str], columns: Sequence[str], noun: str, wraps: bool = False
    ) -> None:
        """Show a list, which may be empty.

        Args:
            fields: of every record, in order.
            columns: those a table shows, in order; the last one may be cut to fit a terminal.
            noun: what they are, in the plural, for the line that says there are none.
            wraps: the last column takes several lines where it would be cut.
        """
        if self.form == "json":
            self._write(_encoded(list(records), indent=2) + "\n")
        elif self.form == "jsonl":
            self._write("".join(_encoded(record) + "\n" for record in records))
        elif self.form == "csv":
            self._write(_as_csv(records, fields))
        elif records:
            self._write(self._table(records, columns, wraps))
        if not records:
            self.note(f"0 {noun}")

    def one(self, record: Record, blocks: Sequence[str] = ()) -> None:
        """Show one thing. `blocks` are the fields with text of several lines; a table shows them last, as they are."""
        if self.form == "json":
            self._write(_encoded(record, indent=2) + "\n")
        elif self.form == "jsonl":
            self._write(_encoded(record) + "\n")
        elif self.form == "csv":
            self._write(_as_csv([record], list(record)))
        else:
            self._write(self._sheet(record, blocks))

    def value(self, record: Record, shown: str) -> None:
        """Show one plain value: a table is just the value."""
        if self.form == "table":
            self._write(visible(shown, keep="\n") + "\n")
        else:
            self.one(record)

    def stream(self, records: Iterable[Record], fields: Sequence[str]) -> int:
        """Show any number of records without keeping them; where a table was asked for, as jsonl. Returns how many."""
        count = 0
        if self.form == "csv":
            self._write(_as_csv((), fields))
        for count, record in enumerate(records, 1):
            if self.form == "csv":
                self._write(_as_csv([record], fields, has_head=False))
            elif self.form == "json":
                self._write(("[\n" if count == 1 else ",\n") + _encoded(record))
            else:
                self._write(_encoded(record) + "\n")
        if self.form == "json":
            self._write("\n]\n" if count else "[]\n")
        return count

    def script(self, text: str) -> None:
        """Show a text of our own, as it is, in every form."""
        self._write(text)

    def note(self, text: str) -> None:
        """Tell the person something that is no data; `--quiet` leaves it out."""
        if not self.is_quiet:
            self.complain(text)

    def complain(self, text: str) -> None:
        """One line on standard error, always."""
        try:
            self.err.write(one_line(text) + "\n")
            self.err.flush()
        except (OSError, ValueError):
            return  # nobody is there to be told

    def trace(self, error: BaseException) -> None:
        """The frames of an exception that are somebody's own code, from the first one on, on standard error."""
        frames = error.__traceback__
        while frames is not None and frames.tb_next and _OURS in frames.tb_frame.f_code.co_filename:
            frames = frames.tb_next
        text = "".join(traceback.format_exception(type(error), error, frames))
        try:
            self.err.write(visible(text, keep="\n\t"))
            self.err.flush()
        except (OSError, ValueError):
            return

    def flush(self) -> None:
        """Make sure that everything has gone out."""
        self._write("")

    @property
    def width(self) -> int:
        """Cells of a line; many where nobody looks at a terminal."""
        return shutil.get_terminal_size().columns if self.out.isatty() else 1_000

    def may_speak(self, text: str) -> bool:
        """Whether the stream of data can say these characters."""
        try:
            text.encode(getattr(self.out, "encoding", None) or "utf-8")
        except (UnicodeEncodeError, LookupError):
            return False
        return True

    def may_colour(self, stream: TextIO) -> bool:
        """As `--color` says; auto: on a terminal, unless NO_COLOR asked otherwise."""
        return self.colour == "always" or (self.colour == "auto" and stream.isatty())

    def _write(self, text: str) -> None:
        if self._is_closed:
            return
        try:
            self.out.write(text)
            self.out.flush()
        except BrokenPipeError:
            # The reader has seen enough (`| head`). What is being done goes on; only the showing ends.
            self._stop_showing()
        except OSError as error:  # a full disk
            self._stop_showing()
            raise click.ClickException(f"standard output cannot be written: {error.strerror}") from error

    def _stop_showing(self) -> None:
        """What is still in the stream's buffer goes nowhere, so that nothing trips over it at the exit."""
        self._is_closed = True
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, self.out.fileno())
        os.close(quiet)

    def _table(self, records: Sequence[Record], columns: Sequence[str], wraps: bool) -> str:
        rows = [[self._cell(name, record[name]) for name in columns] for record in records]
        heads = [_label(name).upper().removeprefix("IS ").removesuffix(" AT") for name in columns]
        widths = [max(wcwidth.width(line[at]) for line in (heads, *rows)) for at in range(len(columns))]
        if self.out.isatty():
            widths[-1] = _room_for_last(widths)
        right = [{type(record[name]) for record in records} - {type(None)} == {int} for name in columns]
        lines = [self._line(heads, widths, right, "bold")]
        for row in rows:
            parts = wcwidth.wrap(row[-1], widths[-1]) if wraps and wcwidth.width(row[-1]) > widths[-1] else row[-1:]
            lines.append(self._line([*row[:-1], parts[0]], widths, right))
            lines += [self._line([*[""] * (len(row) - 1), part], widths, right) for part in parts[1:]]
        return "".join(lines)

    def _line(self, cells: Sequence[str], widths: Sequence[int], right: Sequence[bool], style: str = "") -> str:
        last = len(cells) - 1
        shown = []
        for at, cell in enumerate(cells):
            text = _cut(cell, widths[at])
            pad = " " * (widths[at] - wcwidth.width(text))
            painted = self._painted(text, style)
            shown.append(pad + painted if right[at] else painted + ("" if at == last else pad))
        return _GAP.join(shown).rstrip() + "\n"

    def _sheet(self, record: Record, blocks: Sequence[str]) -> str:
        names = [
            name for name in record if name not in blocks and record[name] is not None and record[name] is not False
        ]
        width = max((len(_label(name)) for name in names), default=0)
        lines = []
        for name in names:
            value = record[name]
            exact = f"{value.isoformat(timespec='milliseconds')}" if isinstance(value, datetime) else ""
            shown = self._cell(name, value)
            text = f"{exact}  ({shown})" if exact and self.now else exact or shown
            lines.append(f"{self._painted(_label(name).ljust(width), 'bold')}{_GAP}{self._painted(text)}\n")
        for name in blocks:
            if record.get(name):
                text = visible(str(record[name]).rstrip("\n"), keep="\n\t").replace("\n", "\n    ")
                lines.append(f"{self._painted(name.replace('_', ' '), 'bold')}\n    {text}\n")
        return "".join(lines)

    def _cell(self, name: str, value: Any) -> str:
        if value is None:
            return "-"
        if isinstance(value, bool):
            return "yes" if value else "no"
        if isinstance(value, datetime):
            return since(value, self.now) if self.now else value.isoformat(timespec="seconds")
        if isinstance(value, tuple):  # of names, our own; what a task was given comes as lists
            return visible(", ".join(map(str, value))) or "-"
        if isinstance(value, list | dict):
            return _encoded(value)
        text = str(value)
        return visible(text.replace("_", "-") if name in _ENUMS else text)

    def _painted(self, text: str, style: str = "") -> str:
        if not self.may_colour(self.out):
            return text
        if style == "bold":
            return click.style(text, bold=True)
        colour = _COLOURS.get(text)
        return click.style(text, fg=colour) if colour else text


def _label(name: str) -> str:
    return _LABELS.get(name, name.replace("_", " "))


def _cut(text: str, width: int) -> str:
    return text if wcwidth.width(text) <= width else wcwidth.clip(text, 0, width - 1) + "…"


def _room_for_last(widths: Sequence[int]) -> int:
    """The last column gives way so that a row fits the terminal, down to a least width."""
    columns = shutil.get_terminal_size().columns
    rest = columns - sum(widths[:-1]) - len(_GAP) * (len(widths) - 1)
    return min(widths[-1], max(rest, _LEAST_TEXT_CELLS))


def _encoded(value: Any, indent: int | None = None) -> str:
    return json_safe(json.dumps(value, ensure_ascii=False, indent=indent, default=_plain))


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, Iterable):
        return list(value)
    raise TypeError(f"{type(value).__name__} cannot be shown as JSON")


def _as_csv(records: Sequence[Record], fields: Sequence[str], has_head: bool = True) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    if has_head:
        writer.writerow(fields)
    for record in records:
        writer.writerow([_csv_cell(record[name]) for name in fields])
    return text.getvalue()


def _csv_cell(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, datetime):
        return value.isoformat()
    return spreadsheet_safe(value if isinstance(value, str) else _encoded(value))
