"""The root of the command line, and its last word: every error that is known ends as one line and an exit code."""

import io
import os
import sys
import traceback
from collections.abc import Callable, Sequence

import click

from lattice_tasks.admin.about import PROGRAM, completion, show_version
from lattice_tasks.admin.audit import audit
from lattice_tasks.admin.db import db
from lattice_tasks.admin.desk import Desk
from lattice_tasks.admin.dlq import dlq
from lattice_tasks.admin.doctor import doctor, health
from lattice_tasks.admin.fifo import fifo
from lattice_tasks.admin.options import global_options
from lattice_tasks.admin.queues import queues
from lattice_tasks.admin.tasks import tasks
from lattice_tasks.admin.trees import trees
from lattice_tasks.admin.worker import dev, worker
from lattice_tasks.admin.workers import workers
from lattice_tasks.errors import LatticeError

__all__ = ["main", "root"]

INTERRUPTED = 130
_EPILOG = """\b
Exit codes: 0 ok, 1 failed, 2 usage, 3 not found, 4 conflict, 5 partly done, 6 confirmation missing,
69 store or broker unreachable, 75 timed out (retry is safe), 78 bad configuration, 130 interrupted.
Every option can be set by a variable: LATTICE_STORE_URL, LATTICE_OUTPUT, LATTICE_TASKS_LIST_LIMIT, …"""


class _Root(click.Group):
    """Its commands are listed in the order in which somebody meets them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


def _root() -> click.Group:
    group = _Root(
        "lattice-tasks",
        params=[*global_options()],
        help="Durable tasks: queues, workers, dead letters. Data goes to standard output, all else to standard error.",
        epilog=_EPILOG,
        context_settings={
            "auto_envvar_prefix": "LATTICE",
            "help_option_names": ["-h", "--help"],
            "max_content_width": 100,
        },
    )
    for command in (
        queues,
        tasks,
        dlq,
        fifo,
        trees,
        workers,
        audit,
        db,
        worker,
        dev,
        doctor,
        health,
        completion,
        show_version,
    ):
        group.add_command(command)
    return group


root = _root()


def main(arguments: Sequence[str] | None = None, make_desk: Callable[[], Desk] = Desk) -> int:
    """Run one command; returns its exit code and raises nothing."""
    _mend_streams()
    desk = make_desk()
    code = 1
    try:
        code = _run(desk, list(sys.argv[1:] if arguments is None else arguments))
    finally:
        try:
            desk.close()
        except LatticeError as error:
            desk.screen.complain(f"error: {error}")
            code = code or error.exit_code
    return code


def _mend_streams() -> None:
    """Standard streams that exist and can take every character.

    One that the caller has closed leads nowhere: its number must not go to a database file or a socket.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        stream = getattr(sys, name)
        if stream is None:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            os.set_inheritable(number, True)
            setattr(sys, name, os.fdopen(number, "w" if number else "r", encoding="utf-8", closefd=False))
        elif number and isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _run(desk: Desk, arguments: list[str]) -> int:
    try:
        result = root.main(arguments, PROGRAM, standalone_mode=False, obj=desk)
        return result if isinstance(result, int) else 0
    except (click.Abort, KeyboardInterrupt):
        desk.screen.complain("interrupted")
        return INTERRUPTED
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), desk.screen.err)
        return error.exit_code
    except click.UsageError as error:
        where = error.ctx.command_path if error.ctx else PROGRAM
        desk.screen.complain(f"error: {error.format_message()} (see: {where} --help)")
        return error.exit_code
    except click.ClickException as error:
        desk.screen.complain(f"error: {error.format_message()}")
        return error.exit_code
    except LatticeError as error:
        desk.screen.complain(f"error: {error}")
        return error.exit_code
    except Exception as error:  # noqa: BLE001 - the last word: nothing below us may end in a page of frames
        if desk.is_verbose:
            traceback.print_exc(file=desk.screen.err)
        desk.screen.complain(f"error: unforeseen {type(error).__name__}: {error} (-v shows where)")
        return 1
