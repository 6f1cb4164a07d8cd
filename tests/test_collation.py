"""Order is that of the bytes, whatever language the database speaks."""

import random
from collections.abc import Iterator
from urllib.parse import urlsplit
from uuid import uuid4

import psycopg
import pytest

from lattice_tasks import Lattice
from lattice_tasks.store.engine import Statement
from tests.working import opened, rows

CASE = ["Zz", "a0", "aZ", "aa"]
#: Columns whose values are a few names of our own, which any language orders alike.
OUR_WORDS = {"kind", "state"}
LETTERS = "aAbBzZ059 _-./~äÄß€éＡ\U0001f600"


@pytest.fixture
def english_url(postgres_server: str) -> Iterator[str]:
    """A database whose own order is that of a dictionary."""
    name = f"test_{uuid4().hex[:16]}"
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        try:
            connection.execute(
                f"create database {name} template template0 encoding 'UTF8' locale 'C.UTF-8' "
                "locale_provider icu icu_locale 'en-US'"
            )
        except psycopg.Error as error:
            pytest.skip(f"this server makes no database in English: {error}")
        yield urlsplit(postgres_server)._replace(path="/" + name).geturl()
        connection.execute(f"drop database {name} with (force)")


def keys(count: int) -> list[str]:
    chance = random.Random(50)
    made = {"".join(chance.choices(LETTERS, k=chance.randint(2, 12))) for _ in range(count)}
    return [*dict.fromkeys((*CASE, *made))]


def test_keys_are_ordered_by_their_bytes_in_an_english_database(english_url: str) -> None:
    """C50: ten thousand of them, put in at random places; the order that the database itself would choose is another."""
    given = keys(10_000)
    wanted = sorted(given, key=lambda key: key.encode())

    with opened(english_url) as lattice:
        register(lattice)
        with lattice.engine.session() as session:
            session.raw.cursor().executemany(
                "insert into lattice_tree_row (tree_id, key, value) values (1, %s, '')", [(key,) for key in given]
            )
            stored = [key for (key,) in session.fetch(Statement("select key from lattice_tree_row order by key"))]
            spoken = 'select key from lattice_tree_row order by key collate "default"'
            english = [key for (key,) in session.fetch(Statement(spoken))]
            between = Statement("select count(*) from lattice_tree_row where key >= %s and key < %s")
            counted = session.fetch(between, (wanted[100], wanted[9_000]))[0][0]

    assert len(given) > 9_000
    assert stored == wanted
    assert [key for key in english if key in CASE] != [key for key in wanted if key in CASE]
    assert counted == 8_900


def test_a_fifo_is_in_order_in_an_english_database(english_url: str) -> None:
    """C50, Q-47: ids are text there, and names differ by a letter's case alone."""
    with opened(english_url) as lattice:
        for name in ("work", "Work"):
            lattice.fifo(name).enqueue_many([f"{name}{number}" for number in range(120)])

        drained = [entry.value for entry in iter(lattice.fifo("work").try_dequeue, None)]

        assert drained == [f"work{number}" for number in range(120)]
        assert lattice.fifo("Work").count() == 120


def test_every_text_that_an_index_orders_is_ordered_by_its_bytes(english_url: str) -> None:
    """C50: in whatever table."""
    with opened(english_url) as lattice:
        register(lattice)
        indexed = rows(
            lattice,
            """select i.indrelid::regclass::text, a.attname, c.collname
               from pg_index i join pg_attribute k on k.attrelid = i.indexrelid
               join pg_attribute a on a.attrelid = i.indrelid and a.attnum = i.indkey[k.attnum - 1]
               join pg_collation c on c.oid = k.attcollation
               where starts_with(i.indrelid::regclass::text, 'lattice_') and a.atttypid = 'text'::regtype""",
        )

    assert {("lattice_tree_row", "key", "C"), ("lattice_tree", "name", "C")} <= set(indexed)
    assert [found for found in indexed if found[1] not in OUR_WORDS and found[2] != "C"] == []


def register(lattice: Lattice) -> None:
    """Make the schema."""
    assert lattice.namespace_id
