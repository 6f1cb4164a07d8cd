"""Every statement of a tree walks its own keys only, before anybody has analysed the tables and however large they are."""

import re
from contextlib import closing
from typing import Any

import psycopg
import pytest

from lattice_tasks import Lattice
from lattice_tasks.maintenance import compact_trees
from lattice_tasks.store import cursor, journal, puts, registry
from lattice_tasks.store import tree as cells
from lattice_tasks.store.session import Statement
from lattice_tasks.trees.writer import writing
from tests.forest import SITE, cell, journaled
from tests.plans import Spy, fill, generic_plan, spied
from tests.working import opened

ROWS = 100_000
LARGE = ("lattice_cell", "lattice_journal", "lattice_tree_batch", "lattice_cursor")
FILL = [
    f"""insert into lattice_cell (tree_id, key, value, wall, counter, origin, dead_at)
        select 1 + n % 5, 'k' || n, case when n % 7 > 0 then '1'::bytea end, n, 0, 'x', case when n % 7 = 0 then n end
        from generate_series(1, {ROWS}) n""",
    f"""insert into lattice_journal (tree_id, seq, op, wall, counter, origin)
        select 1 + n % 5, n, 'commit', n, 0, 'x' from generate_series(1, {ROWS}) n""",
    f"""insert into lattice_tree_batch (tree_id, transaction_id, fingerprint, outcome, decided_at)
        select 1 + n % 5, 'op' || n, 'f', 'commit', n from generate_series(1, {ROWS}) n""",
    f"""insert into lattice_cursor (id, tree, kind, is_reverse, start_key, end_key, page_size, is_done, total, idle_us,
            expires_at) select 'c' || n, 't/1/x', 'keys', 0, '', 'z', 5, 0, 0, 1, n from generate_series(1, {ROWS}) n""",
]


def live(lattice: Lattice) -> None:
    """One of everything that is done with trees."""
    tree = lattice.tree("orders")
    tree.replicate()
    version = tree.set("a", 1)
    tree.set_if_version("a", 2, version)
    tree.set_many({f"k{n}": n for n in range(20)})
    with tree.batch("op") as batch:
        batch.set("b", 1)
        batch.delete("k3")
    with tree.batch("op") as batch:
        batch.set("b", 1)
        batch.delete("k3")
    tree.get("a")
    tree.delete("a")
    tree.delete_range("k5", "k6")
    for reverse in (False, True):
        list(tree.scan("k", reverse=reverse, limit=5))
        for kind in ("keys", "entries"):
            tree.open_cursor(kind, reverse=reverse).next_page()
    tree.count("k1")
    reader = tree.open_cursor("delete_range", start="k7", page_size=1)
    reader.next_page()
    reader.close()
    tree.snapshot("copy")
    with lattice.engine.session() as session, writing(session, tree._tree, SITE) as writer:
        writer.merge([cell("z", b"1", 5)])
    journaled(lattice.engine, tree._tree)
    with lattice.engine.session() as session:
        compact_trees(session, 10**9)
    lattice.trees()


def test_on_postgres_no_statement_reads_a_table_of_trees_through(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """spec 2.10 order, C39: without statistics, 100,000 rows in each, by the generic plan; pages come without a sort."""
    with opened(postgres_url) as lattice:
        spy = spied(lattice, live, monkeypatch)
        with psycopg.connect(postgres_url, autocommit=True) as plain:
            fill(plain, LARGE, FILL)
        bad, pages = {}, 0
        with closing(lattice.engine.open_session()) as session:
            for text, (_, params) in spy.seen.items():
                if not any(table in text for table in LARGE):
                    continue
                plan = generic_plan(session.raw, text, params)
                pages += "limit" in text and "order by key" in text
                sorts = "Sort" in plan and "order by key" in text
                if sorts or any(f"Seq Scan on {table}" in plan for table in LARGE):
                    bad[text] = plan

    assert pages == 4
    assert len(spy.seen) > 20
    assert bad == {}, "\n\n".join(f"{text}\n{plan}" for text, plan in bad.items())


def test_on_sqlite_no_statement_reads_a_table_of_trees_through(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """spec 2.10 order, C39"""
    with opened(sqlite_url) as lattice:
        spy = spied(lattice, live, monkeypatch)
        bad = {}
        with lattice.engine.session() as session:
            for text, (statement, params) in spy.seen.items():
                if not any(table in text for table in LARGE):
                    continue
                params = tuple(str(param) if isinstance(param, list) else param for param in params)
                rows = session.raw.execute("explain query plan " + statement.sqlite, params).fetchall()
                plan = [row[3] for row in rows]
                sorts = "limit" in text and "order by key" in text and any("TEMP B-TREE" in step for step in plan)
                if sorts or any(re.match(r"SCAN lattice_\w+", step) for step in plan):
                    bad[statement.sqlite] = "\n".join(plan)

    assert bad == {}, "\n\n".join(f"{text}\n{plan}" for text, plan in bad.items())


def test_a_first_look_costs_the_same_however_large_the_tree(postgres_url: str) -> None:
    """The first ten of 200,000, and one by its key, touch a few blocks."""
    with opened(postgres_url) as lattice:
        tree = lattice.tree("orders")
        tree.set("a", 1)
        with lattice.engine.session() as session:
            tree_id = registry.find(session, tree._tree)
            session.raw.execute(FILL[0].replace("1 + n % 5", str(tree_id)).replace("'k'", "'m'"))
            touched = {}
            for name, statement, params in (
                ("page", cells._PAGE, (tree._tree, "", "z", 10)),
                ("back", cells._PAGE_BACK, (tree._tree, "", "z", 10)),
                ("get", cells._GET, (tree._tree, "m77777")),
            ):
                plan = explained(session.raw, statement, params)
                touched[name] = plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]

    assert max(touched.values()) < 40, touched


def explained(connection: psycopg.Connection[Any], statement: Statement, params: tuple) -> dict[str, Any]:
    text = "explain (analyze, buffers, format json) " + statement.postgres
    return psycopg.ClientCursor(connection).execute(text, params).fetchone()[0][0]["Plan"]


def test_every_statement_says_the_same_in_both_dialects() -> None:
    both = [
        (room.__name__, name, statement)
        for room in (cells, cursor, journal, puts, registry)
        for name, statement in vars(room).items()
        if isinstance(statement, Statement)
    ]

    assert len(both) > 25
    for _, name, statement in both:
        assert "%s" not in statement.sqlite, name
        assert "{now}" not in statement.postgres + statement.sqlite, name


@pytest.mark.parametrize(
    ("call", "statements"), [("get", 1), ("scan", 1), ("count", 1), ("set", 3), ("set_if_absent", 4)]
)
def test_what_a_call_costs_in_statements(store_url: str, call: str, statements: int) -> None:
    """A look is one; a change holds the head, writes and moves the head."""
    with opened(store_url) as lattice:
        tree = lattice.tree("orders")
        tree.set("a", 1)
        with pytest.MonkeyPatch.context() as patch:
            spy = Spy(patch)
            args = {"get": ("a",), "scan": (), "count": (), "set": ("b", 1), "set_if_absent": ("c", 1)}[call]
            answer = getattr(tree, call)(*args)
            list(answer) if call == "scan" else None

    if call == "set" and lattice.engine.dialect == "postgres":
        statements = 1
    assert len(spy.seen) <= statements, list(spy.seen)
