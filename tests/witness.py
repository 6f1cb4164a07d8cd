"""What the store says at the end of a run, read without the system: its rows, their places, and a witness inside."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from lattice_tasks.errors import StoreUnavailable
from lattice_tasks.settings import Settings
from lattice_tasks.store.engine import POSTGRES, Engine, Session, Statement
from lattice_tasks.tasks.invocation import State


@dataclass(frozen=True, slots=True)
class Row:
    """One invocation as the store has it at the end, and in how many places it is."""

    seq: int
    id: str
    name: str | None
    state: State
    attempt: int
    result: Any
    error: str | None
    entry_id: int | None
    ready: int
    scheduled: int
    leased: int


# A witness inside the store that the system does not know: every change of a resting state, in the same transaction.
_WITNESS = {
    True: """
        create table witness (seq bigint not null, before int not null, after int not null, is_same boolean not null);
        create function witness_note() returns trigger language plpgsql as $$ begin
            insert into witness values (old.seq, old.state, new.state, old.result is not distinct from new.result);
            return null; end $$;
        create trigger witness after update on lattice_invocation for each row
            when (old.state is distinct from new.state or old.state <> 0) execute function witness_note()""",
    False: """
        create table witness (seq integer not null, before integer not null, after integer not null, is_same integer);
        create trigger witness after update on lattice_invocation when old.state <> new.state or old.state <> 0 begin
            insert into witness values (old.seq, old.state, new.state, old.result is new.result); end""",
}
_ROWS = """select i.seq, {id}, i.body, i.state, i.attempt, i.result, i.error, i.entry_id,
        (select count(*) from lattice_ready r where r.seq = i.seq),
        (select count(*) from lattice_scheduled s where s.seq = i.seq),
        (select count(*) from lattice_lease l where l.seq = i.seq)
    from lattice_invocation i order by i.seq"""


class Witnessed:
    """A store under watch: its own connection, its own eyes."""

    def __init__(self, store_url: str) -> None:
        self._engine = Engine(Settings(store_url=store_url))

    def install(self) -> None:
        """Put the witness into a store whose schema is there."""
        with self._opened() as session:
            if session.dialect == POSTGRES:
                session.raw.execute(_WITNESS[True])
            else:
                session.raw.executescript(_WITNESS[False])

    def fetch(self, sql: str, *params: Any) -> list[tuple]:
        """The answer to a statement that both engines know."""
        with self._opened() as session:
            return session.fetch(Statement(sql), params)

    def change(self, sql: str, *params: Any) -> int:
        """Change rows behind the system's back."""
        with self._opened() as session:
            return session.execute(Statement(sql), params)

    def is_writable(self) -> bool:
        """Whether nobody holds the file just now; a server always answers."""
        with self._opened() as session:
            if session.dialect == POSTGRES:
                return True
            session.raw.execute("pragma busy_timeout = 300").fetchall()
            try:
                with session.transaction():
                    return True
            except StoreUnavailable:
                return False

    def rows(self) -> list[Row]:
        """Every invocation, in submit order."""
        with self._opened() as session:
            is_postgres = session.dialect == POSTGRES
            return [
                _row(one) for one in session.fetch(Statement(_ROWS.format(id="i.id::text" if is_postgres else "i.id")))
            ]

    @contextmanager
    def _opened(self) -> Iterator[Session]:
        session = self._engine.open_session()
        try:
            yield session
        finally:
            session.close()


def _row(found: tuple) -> Row:
    seq, task_id, body, state, attempt, result, error, entry_id, ready, scheduled, leased = found
    place = "lease" if leased else "scheduled" if scheduled else "ready"
    value = None if result is None else json.loads(bytes(result))
    return Row(
        seq,
        task_id,
        _name_of(bytes(body)),
        State.of(state, place),
        attempt,
        value,
        error,
        entry_id,
        ready,
        scheduled,
        leased,
    )


def _name_of(body: bytes) -> str | None:
    try:
        return str(json.loads(body)["args"][0])
    except (ValueError, KeyError, IndexError, TypeError):
        return None
