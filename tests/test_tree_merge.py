"""The last writer wins, at every site the same one, in whatever order and however often they hear of each other."""

from collections.abc import Iterator
from functools import reduce

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from lattice_tasks.errors import InvalidInput
from lattice_tasks.store.engine import Engine
from lattice_tasks.store.tree import Cell, later
from lattice_tasks.trees.writer import writing
from tests.forest import SITE, TREE, cell, engine_at, journaled, stored, tree_of

pytestmark = pytest.mark.recycled

CELLS = st.builds(
    cell,
    key=st.sampled_from("ab"),
    value=st.none() | st.sampled_from([b"", b"1", b"2"]),
    wall=st.integers(1, 3),
    counter=st.integers(0, 1),
    origin=st.sampled_from(["oslo", "rome"]),
)
SET_CELLS = CELLS | st.builds(
    cell,
    key=st.sampled_from("ab"),
    value=st.sampled_from([b"1", b"2"]),
    wall=st.integers(1, 3),
    counter=st.just(0),
    origin=st.sampled_from(["oslo", "rome"]),
    dead_at=st.none() | st.just(2**60),
)


@pytest.fixture
def engine(store_url: str) -> Iterator[Engine]:
    with engine_at(store_url) as engine:
        yield engine


def merge(engine: Engine, *cells: Cell, tree: str = TREE) -> list[str]:
    with engine.session() as session, writing(session, tree, SITE) as writer:
        return writer.merge(cells)


def seen(engine: Engine, tree: str = TREE) -> dict[str, tuple]:
    """What every site must agree on: not when it buried a tombstone."""
    return {key: (one.value, one.version, one.expires_at) for key, one in stored(engine, tree).items()}


@given(SET_CELLS, SET_CELLS, SET_CELLS)
@example(cell("a", b"1", 1), cell("a", None, 1), cell("a", b"2", 1))
def test_later_is_commutative_associative_and_idempotent(one: Cell, two: Cell, three: Cell) -> None:
    """spec 2.2 LWW: a site that makes two cells of one version divides nobody."""

    def alike(cell: Cell) -> tuple:
        return cell.value, cell.version, cell.expires_at

    assert alike(later(one, two)) == alike(later(two, one))
    assert alike(later(later(one, two), three)) == alike(later(one, later(two, three)))
    assert alike(later(one, one)) == alike(one)
    assert later(one, two).version == max(one.version, two.version)


def test_any_order_and_number_of_deliveries_leaves_the_same_tree(engine: Engine) -> None:
    """spec 2.2 LWW: commutative, associative, idempotent, in the store."""
    runs = iter(range(10**6))

    @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.lists(SET_CELLS, min_size=1, max_size=8), st.data())
    def check(cells: list[Cell], data: st.DataObject) -> None:
        trees = [f"t/1/run{next(runs)}" for _ in range(2)]
        shuffled = data.draw(st.permutations(cells + cells))
        cut = data.draw(st.integers(0, len(shuffled)))
        for one in cells:
            merge(engine, one, tree=trees[0])
        for part in (shuffled[:cut], shuffled[cut:]):
            merge(engine, *part, tree=trees[1])

        expected = {}
        for key in {one.key for one in cells}:
            best = reduce(later, [one for one in cells if one.key == key])
            expected[key] = (best.value, best.version, best.expires_at)
        assert seen(engine, trees[0]) == expected
        assert seen(engine, trees[1]) == expected

    check()


def test_a_merge_keeps_the_foreign_stamp_and_origin(engine: Engine) -> None:
    """spec 2.2: higher stamp wins, ties by site; 2.6: source stamp and origin verbatim."""
    assert merge(engine, cell("a", b"1", 5, 2, "oslo")) == ["a"]
    assert merge(engine, cell("a", b"0", 5, 1, "rome")) == []
    assert merge(engine, cell("a", b"2", 5, 2, "rome")) == ["a"]
    assert merge(engine, cell("a", b"1", 5, 2, "oslo"), cell("a", b"2", 5, 2, "rome")) == []

    assert seen(engine) == {"a": (b"2", cell("a", b"", 5, 2, "rome").version, None)}
    assert tree_of(engine).get_with_version("a") == (2, cell("a", b"", 5, 2, "rome").version)


def test_a_foreign_tombstone_is_kept_from_its_arrival_on(engine: Engine) -> None:
    """spec 2.2, 2.10: its grace is counted by our clock, not by that of its stamp."""
    now = tree_of(engine).set("z", 1).stamp.wall // 10
    merge(engine, cell("a", None, 5))
    merge(engine, cell("a", b"1", 4))

    assert tree_of(engine).get("a") is None
    assert stored(engine)["a"].dead_at >= now


def test_a_merged_change_is_journaled_once(engine: Engine) -> None:
    """One record for each change of the tree, with its author's stamp; none for what changed nothing."""
    tree_of(engine).replicate()
    merge(engine, cell("a", b"1", 5), cell("a", b"2", 6), cell("b", None, 6), cell("c", b"3", 7, dead_at=2**60))
    merge(engine, cell("a", b"1", 5), cell("b", None, 6))

    assert [
        (r.op, r.key, r.value, r.version.stamp.wall, r.version.origin, r.expires_at) for r in journaled(engine)
    ] == [
        ("set", "a", b"2", 6, "far", None),
        ("delete", "b", None, 6, "far", None),
        ("set", "c", b"3", 7, "far", 2**60),
    ]


def test_a_value_that_expired_still_takes_part(engine: Engine) -> None:
    """spec 2.10 TTL: kept for merging: an older value does not come back from behind it."""
    merge(engine, cell("a", b"2", 6, dead_at=1))
    merge(engine, cell("a", b"1", 5))

    assert tree_of(engine).get("a") is None
    assert seen(engine)["a"][0] == b"2"


@pytest.mark.parametrize(
    "bad",
    [
        cell("a", b"1", 0),
        cell("a", b"1", -1),
        cell("a", b"1", 2**62),
        cell("a", b"1", 5, 2**31),
        cell("a", b"1", 5, -1),
        cell("a", b"1", 5, origin=""),
        cell("a", b"1", 5, origin="x" * 65),
        cell("a", b"1", 5, origin="a\0"),
        cell("", b"1", 5),
        cell("a\0", b"1", 5),
    ],
)
def test_a_cell_that_no_site_makes_is_refused(engine: Engine, bad: Cell) -> None:
    with pytest.raises(InvalidInput):
        merge(engine, cell("b", b"1", 5), bad)

    assert seen(engine) == {}
