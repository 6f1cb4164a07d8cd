"""Migrations and models agree on both engines; several may start at once; an older or newer store is refused."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playhouse.schema_diff import diff_models

from lattice_tasks.errors import SchemaMismatch, StoreError
from lattice_tasks.settings import Settings
from lattice_tasks.store import schema
from lattice_tasks.store.engine import POSTGRES, Engine, Statement
from lattice_tasks.store.schema import migrate, require_current, status
from lattice_tasks.store.tables import models

#: One process of several: says that it is ready, waits for the word, then says what it applied.
STARTER = """
import sys
from lattice_tasks.settings import Settings
from lattice_tasks.store.engine import Engine
from lattice_tasks.store import schema
engine = Engine(Settings(store_url=sys.argv[1]))
print("ready", flush=True)
sys.stdin.readline()
getattr(schema, sys.argv[2])(engine)
print(*schema.status(engine)[0])
"""
COLUMNS = {
    POSTGRES: "select table_name, column_name, data_type, is_nullable, collation_name from information_schema.columns "
    "where table_schema = 'public' order by 1, 2",
    "sqlite": 'select m.name, c.name, c.type, c.pk, c.pk or c."notnull" from sqlite_master m, pragma_table_info(m.name) c '
    "where m.type = 'table' order by 1, 2",
}
INDEXES = {
    POSTGRES: "select tablename, regexp_replace(indexdef, 'INDEX \\S+ ON', 'INDEX ON') from pg_indexes "
    "where schemaname = 'public' order by 1, 2",
    "sqlite": 'select m.tbl_name, i."unique", i.partial, group_concat(c.name) from sqlite_master m, '
    "pragma_index_list(m.tbl_name) i, pragma_index_info(i.name) c "
    "where m.name = i.name and i.origin = 'c' group by m.name order by 1, 2, 3, 4",
}
ADDED = """
def up(migrator, db):
    db.execute_sql("create table added (id bigint primary key)")
"""


@pytest.fixture
def engine(store_url: str) -> Iterator[Engine]:
    engine = Engine(Settings(store_url=store_url))
    yield engine
    engine.close()


@pytest.fixture
def history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the migrations, to which the test adds those of later code."""
    folder = tmp_path / "migrations"
    shutil.copytree(schema.MIGRATIONS, folder)
    monkeypatch.setattr(schema, "MIGRATIONS", folder)
    return folder


def fetch(engine: Engine, text: str) -> list[tuple]:
    with engine.session() as session:
        return session.fetch(Statement(text))


def tables(engine: Engine) -> set[str]:
    with engine.session():
        return set(engine.database.get_tables())


def described(engine: Engine) -> tuple[dict[tuple, tuple], list[tuple]]:
    """Columns with type, nullability and order of text; indexes with columns and condition; names of indexes aside."""
    columns = {row[:2]: row[2:] for row in fetch(engine, COLUMNS[engine.dialect]) if row[0] != "lattice_migration"}
    if engine.dialect != POSTGRES:
        columns = {place: (affinity(kind), *rest) for place, (kind, *rest) in columns.items()}
    indexes = [row for row in fetch(engine, INDEXES[engine.dialect]) if row[0] != "lattice_migration"]
    return columns, sorted(indexes)


def affinity(kind: str) -> str:
    """SQLite's first rules: what counts of a column's type."""
    return next((mark for mark in ("INT", "TEXT", "BLOB") if mark in kind.upper()), kind)


def test_the_models_have_the_tables_columns_and_indexes_of_the_migrations(engine: Engine) -> None:
    migrate(engine)

    with engine.session():
        difference = diff_models(engine.database, list(vars(models(engine.database)).values()))

    assert not difference, str(difference)


def test_the_models_make_what_the_migrations_make(engine: Engine) -> None:
    """Types, nullability, collations and conditions too, which the comparison of the library passes over."""
    migrate(engine)
    migrated = described(engine)
    made = list(vars(models(engine.database)).values())

    with engine.session():
        engine.database.drop_tables(made)
        engine.database.create_tables(made)

    assert described(engine) == migrated


def test_texts_whose_order_matters_compare_by_bytes(postgres_url: str) -> None:
    engine = Engine(Settings(store_url=postgres_url))
    migrate(engine)

    by_bytes = {place for place, row in described(engine)[0].items() if row[2] == "C"}
    engine.close()

    assert by_bytes >= {
        ("lattice_tree", "name"),
        ("lattice_tree_row", "key"),
        ("lattice_queue", "name"),
        ("lattice_namespace", "name"),
        ("lattice_invocation", "key"),
    }


def test_an_empty_store_is_migrated_by_its_first_use(engine: Engine) -> None:
    assert status(engine)[0] == []

    require_current(engine)

    applied, pending, newer = status(engine)
    assert (applied[0], pending, newer) == ("0001_initial", [], [])
    assert migrate(engine) == []
    require_current(engine)


@pytest.mark.parametrize("start", ["migrate", "require_current"])
def test_several_processes_may_start_on_an_empty_store_at_once(store_url: str, engine: Engine, start: str) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", STARTER, store_url, start],
            cwd=Path(__file__).resolve().parents[1],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(5)
    ]
    for process in processes:
        assert process.stdout.readline() == "ready\n"

    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    ended = [process.communicate(timeout=60) for process in processes]

    assert [process.returncode for process in processes] == [0] * 5, [error for _, error in ended]
    assert {output.strip() for output, _ in ended} == {" ".join(status(engine)[0])}


def test_an_older_store_is_refused_until_it_is_migrated(engine: Engine, history: Path) -> None:
    migrate(engine)
    (history / "0900_added.py").write_text(ADDED)

    with pytest.raises(SchemaMismatch, match=r"older .*0900_added.*lattice-tasks db migrate"):
        require_current(engine)
    assert "added" not in tables(engine)

    assert migrate(engine) == ["0900_added"]
    require_current(engine)
    assert "added" in tables(engine)


def test_a_newer_store_is_refused_and_left_alone(engine: Engine, history: Path) -> None:
    later = history / "0900_added.py"
    later.write_text(ADDED)
    migrate(engine)
    later.unlink()
    before = status(engine)

    for use in (require_current, migrate):
        with pytest.raises(SchemaMismatch, match=r"newer .*0900_added.*upgrade"):
            use(engine)

    assert status(engine) == before
    assert before[2] == ["0900_added"]


def test_a_migration_that_fails_leaves_no_half_of_itself(engine: Engine, history: Path) -> None:
    migrate(engine)
    broken = history / "0900_added.py"
    broken.write_text(ADDED + '    db.execute_sql("create table added (id bigint primary key)")\n')

    with pytest.raises(StoreError):
        migrate(engine)

    assert "added" not in tables(engine)
    assert status(engine)[1] == ["0900_added"]
    broken.write_text(ADDED)
    assert migrate(engine) == ["0900_added"]


def test_a_first_migration_that_fails_leaves_an_empty_store(engine: Engine, history: Path) -> None:
    (history / "0900_added.py").write_text(ADDED + "    raise ArithmeticError\n")

    with pytest.raises(ArithmeticError):
        require_current(engine)

    assert tables(engine) == set()


def test_foreign_keys_are_watched_again_after_a_migration(sqlite_url: str) -> None:
    engine = Engine(Settings(store_url=sqlite_url))
    migrate(engine)

    with engine.session() as session:
        watched: Any = session.fetch(Statement("pragma foreign_keys"))
    engine.close()

    assert watched == [(1,)]
