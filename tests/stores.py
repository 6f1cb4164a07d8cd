"""What the tests of the store's users share: a store of this code's schema, and a session that is watched or crashes."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from lattice_tasks.settings import Settings
from lattice_tasks.store.engine import Engine, Session, Statement
from lattice_tasks.store.schema import migrate


@contextmanager
def fresh_engine(store_url: str) -> Iterator[Engine]:
    engine = Engine(Settings(store_url=store_url))
    try:
        migrate(engine)
        yield engine
    finally:
        engine.close()


class Watched(Session):
    """Counts statements, and loses its connection before the one it is told to."""

    def __init__(self, session: Session, crash_before: int | None = None) -> None:
        super().__init__(session.raw, session.dialect)
        self.statements = 0
        self._crash_before = crash_before

    def fetch(self, statement: Statement, params: Any = ()) -> list[tuple]:
        self._count()
        return super().fetch(statement, params)

    def execute(self, statement: Statement, params: Any = ()) -> int:
        self._count()
        return super().execute(statement, params)

    def execute_many(self, statement: Statement, rows: Sequence[Any]) -> None:
        self._count()
        super().execute_many(statement, rows)

    def _count(self) -> None:
        self.statements += 1
        if self.statements == self._crash_before:
            self.raw.close()
            raise Crash


class Crash(BaseException):
    """The process is gone."""


@contextmanager
def watched(engine: Engine, crash_before: int | None = None) -> Iterator[Watched]:
    session = engine.open_session()
    try:
        yield Watched(session, crash_before)
    finally:
        session.close()
