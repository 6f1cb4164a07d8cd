"""Looking at the plans of every statement that something runs, on tables that are large and that nobody has analysed."""

import itertools
import re
from collections.abc import Callable, Sequence
from typing import Any

import psycopg
import pytest

from lattice_tasks import Lattice
from lattice_tasks.store.session import Session, Statement


class Spy:
    """Every statement that went to the store, with its parameters."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: dict[str, tuple[Statement, Any]] = {}
        for name in ("fetch", "execute"):
            original = getattr(Session, name)

            def run(session: Session, statement: Statement, params: Any = (), original: Any = original) -> Any:
                self.seen.setdefault(statement.postgres, (statement, params))
                return original(session, statement, params)

            monkeypatch.setattr(Session, name, run)


def spied(lattice: Lattice, live: Callable[[Lattice], object], monkeypatch: pytest.MonkeyPatch) -> Spy:
    """What went to a store of this code's schema while the lattice lived."""
    lattice.migrate()
    spy = Spy(monkeypatch)
    live(lattice)
    monkeypatch.undo()
    return spy


def fill(plain: psycopg.Connection[Any], tables: Sequence[str], statements: Sequence[str]) -> None:
    """Fill these tables anew, and let nobody analyse them."""
    for table in tables:
        plain.execute(f"alter table {table} set (autovacuum_enabled = false)")
        plain.execute(f"truncate {table} restart identity")
    for statement in statements:
        plain.execute(statement)


def generic_plan(connection: psycopg.Connection[Any], text: str, params: Any) -> str:
    numbers = itertools.count(1)
    connection.execute("prepare hot as " + re.sub("%s", lambda _: f"${next(numbers)}", text))
    given = f"({', '.join(['%s'] * len(params))})" if params else ""
    plan = psycopg.ClientCursor(connection).execute(f"explain execute hot {given}", params).fetchall()
    connection.execute("deallocate hot")
    return "\n".join(row[0] for row in plan)
