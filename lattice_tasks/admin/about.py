"""`lattice-tasks version` and `completion`."""

import platform
from importlib.metadata import PackageNotFoundError, version

import click
from click.shell_completion import get_completion_class

from lattice_tasks.admin.desk import Desk, pass_desk
from lattice_tasks.admin.options import Verb
from lattice_tasks.store.engine import sqlite_version

__all__ = ["PROGRAM", "completion", "our_version", "show_version"]

PROGRAM, _SHORT = "lattice-tasks", "lattice"
_LIBRARIES = ("dramatiq", "peewee", "psycopg", "pika")
#: The short program name completes like the long one.
_ALIAS = {
    "bash": f"complete -o nosort -F _lattice_tasks_completion {_SHORT};",
    "zsh": f"compdef _lattice_tasks_completion {_SHORT}",
    "fish": f'complete --no-files --command {_SHORT} --arguments "(_lattice_tasks_completion)";',
}


@click.command("version", cls=Verb)
@pass_desk
def show_version(desk: Desk) -> None:
    """The version of this package and of what it stands on."""
    ours = our_version()
    record = {"version": ours, "python": platform.python_version(), "sqlite": ".".join(map(str, sqlite_version))}
    record |= {name: _version_of(name) for name in _LIBRARIES}
    desk.screen.value(record, f"{PROGRAM} {ours} (" + ", ".join(f"{k} {v}" for k, v in list(record.items())[1:]) + ")")


@click.command(cls=Verb)
@click.argument("shell", type=click.Choice(tuple(_ALIAS)))
@pass_desk
def completion(desk: Desk, shell: str) -> None:
    """Print the completion script of a shell.

    \b
    bash:  eval "$(lattice-tasks completion bash)"          in ~/.bashrc
    zsh:   eval "$(lattice-tasks completion zsh)"           in ~/.zshrc
    fish:  lattice-tasks completion fish | source           in ~/.config/fish/config.fish
    """
    found = get_completion_class(shell)
    if found is None:
        raise click.UsageError(f"no completion is known for {shell}")
    root = click.get_current_context().find_root().command
    script = found(root, {}, PROGRAM, "_LATTICE_TASKS_COMPLETE").source()
    desk.screen.script(f"{script.rstrip()}\n{_ALIAS[shell]}\n")


def our_version() -> str:
    """The version of this package."""
    return _version_of(PROGRAM)


def _version_of(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"
