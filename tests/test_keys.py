"""Text keys: their order is the number's, the same in Python and in both engines; prefix ranges hold just the prefix."""

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from lattice_tasks.errors import InvalidInput
from lattice_tasks.keys import MAX_ID, entry_key, id_of, prefix_end
from lattice_tasks.store.engine import POSTGRES, Session, Statement
from tests.stores import fresh_engine

IDS = st.integers(1, MAX_ID)
# What a key may hold: no lone surrogates, and no NUL, which Postgres does not store.
KEYS = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=6)
EDGES = st.text(
    st.sampled_from("aAäz\x01\x7f\x80\u07ff\u0800\ud7ff\ue000\uffff\U00010000\U0010fffe\U0010ffff"), max_size=4
)

INSERT = Statement(
    postgres="insert into lattice_tree_row (tree_id, key, value) select %s, unnest(%s::text[]), ''",
    sqlite="insert into lattice_tree_row (tree_id, key, value) values (%s, %s, x'')",
)
IN_ORDER = Statement("select key from lattice_tree_row where tree_id = %s order by key")
IN_RANGE = Statement("select key from lattice_tree_row where tree_id = %s and key >= %s and key < %s order by key")
FROM = Statement("select key from lattice_tree_row where tree_id = %s and key >= %s order by key")


@pytest.fixture
def session(store_url: str) -> Iterator[Session]:
    with fresh_engine(store_url) as engine, engine.session() as session:
        yield session


def in_bytes(key: str) -> bytes:
    return key.encode()


@given(IDS, IDS)
def test_the_order_of_keys_is_the_order_of_ids(one: int, other: int) -> None:
    """Q-47"""
    assert (entry_key(one) < entry_key(other)) == (one < other)
    assert id_of(entry_key(one)) == one


def test_a_key_is_padded_to_nineteen_digits() -> None:
    """Q-47"""
    assert entry_key(7) == "e/0000000000000000007"
    assert entry_key(MAX_ID) == "e/9223372036854775807"


@pytest.mark.parametrize("entry_id", [0, -1, MAX_ID + 1, 10**40])
def test_an_id_that_no_key_holds_is_refused(entry_id: int) -> None:
    """Q-48"""
    with pytest.raises(InvalidInput, match=str(entry_id)):
        entry_key(entry_id)


@given(st.text() | st.from_regex(r"e/[0-9]{17,20}", fullmatch=True))
@example("e/0000000000000000000")
@example("e/9223372036854775808")
@example("e/" + "٣" * 19)
@example("e/+000000000000000007")
@example("e/0000000000000000007\n")
@example("E/0000000000000000007")
def test_only_an_entry_key_has_an_id(key: str) -> None:
    """Q-46"""
    found = id_of(key)

    assert found is None or entry_key(found) == key


@given(KEYS | EDGES, KEYS | EDGES)
@example("", "\U0010ffff")
@example("a\U0010ffff", "b")
@example("\ud7ff", "\ue000")
@example("\U0010ffff\U0010ffff", "\U0010ffff")
def test_a_prefix_range_holds_just_what_begins_with_it(prefix: str, key: str) -> None:
    end = prefix_end(prefix)

    for candidate in (key, prefix + key):
        is_inside = in_bytes(prefix) <= in_bytes(candidate) and (end is None or in_bytes(candidate) < in_bytes(end))
        assert is_inside == candidate.startswith(prefix)


def test_both_engines_order_and_range_keys_as_python_does(session: Session) -> None:
    """`COLLATE "C"` and BINARY: by bytes, whatever the database's language."""
    trees = iter(range(1, 10**6))

    @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.sets(KEYS | EDGES, max_size=12), KEYS | EDGES)
    def check(keys: set[str], prefix: str) -> None:
        tree_id, given_keys, end = next(trees), sorted(keys, key=in_bytes), prefix_end(prefix)
        if session.dialect == POSTGRES:
            session.execute(INSERT, (tree_id, given_keys))
        else:
            session.execute_many(INSERT, [(tree_id, key) for key in given_keys])

        ordered = session.fetch(IN_ORDER, (tree_id,))
        ranged = session.fetch(*((FROM, (tree_id, prefix)) if end is None else (IN_RANGE, (tree_id, prefix, end))))

        assert [key for (key,) in ordered] == given_keys
        assert [key for (key,) in ranged] == [key for key in given_keys if key.startswith(prefix)]

    check()


def test_a_language_of_the_database_does_not_reorder_keys(session: Session) -> None:
    """Names of queues, too, compare by bytes: `B` before `a`, as nowhere in a dictionary."""
    names = Statement("select name from lattice_tree order by name")
    for name in ("a", "B", "ä", "_", "b", "A"):
        session.execute(Statement("insert into lattice_tree (name, kind, created_at) values (%s, 'fifo', 0)"), (name,))

    assert [name for (name,) in session.fetch(names)] == ["A", "B", "_", "a", "b", "ä"]
