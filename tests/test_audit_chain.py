"""The chain of the audit: one whoever appends, and nothing in it can be changed, removed or moved unseen."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lattice_tasks import Lattice
from lattice_tasks import audit as audit_room
from lattice_tasks.audit import AuditRow
from lattice_tasks.store import audit as audit_rows
from lattice_tasks.store.engine import Statement
from tests.chains import RECORDS, chain, fault
from tests.working import opened, rows

#: Appends for as long as it is told to; a file of several, all at once.
APPENDER = """
import sys
from lattice_tasks import Lattice
lattice = Lattice(sys.argv[1], set_default=False, log_level="critical")
lattice.namespace_id
print("ready", flush=True)
sys.stdin.readline()
for number in range(int(sys.argv[3])):
    if number % 2:
        with lattice.audit.acting("test act", sys.argv[2], who=sys.argv[2]) as act:
            act.after = {"number": number}
    else:
        with lattice.audit.in_parts("test parts", sys.argv[2], who=sys.argv[2], intended={"number": number}) as act:
            act.after = {"number": number}
lattice.close()
"""

pytestmark = pytest.mark.recycled


@pytest.fixture
def lattice(store_url: str) -> Iterator[Lattice]:
    with opened(store_url) as lattice:
        lattice.namespace_id  # noqa: B018 - opens the store
        yield lattice


@pytest.fixture
def chained(lattice: Lattice) -> Lattice:
    return chain(lattice)


@contextmanager
def tampered(lattice: Lattice, *statements: tuple[Any, ...]) -> Iterator[None]:
    """Inside the block, after these statements behind the lattice's back; then as if they had never been."""

    class Undo(Exception):
        pass

    with suppress(Undo), lattice.engine.together() as session:
        for text, *params in statements:
            session.execute(Statement(text), params)
        yield
        raise Undo


def test_many_processes_at_once_make_one_chain(store_url: str, lattice: Lattice) -> None:
    """I13: appended under one lock, so numbers are dense and no two records follow the same one."""
    each, names = 20, ["ann", "ben", "cleo", "dan"]
    with_input = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    running = [
        subprocess.Popen([sys.executable, "-c", APPENDER, store_url, name, str(each)], **with_input) for name in names
    ]
    for process in running:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"

    for process in running:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in running:
        process.communicate(timeout=60)

    found = rows(lattice, "select n, previous from lattice_audit order by n")
    assert [process.returncode for process in running] == [0] * len(names)
    assert [n for n, _ in found] == list(range(1, len(names) * each * 3 // 2 + 1))
    assert len({previous for _, previous in found}) == len(found)
    assert len({record.who for record in lattice.audit.list(limit=20)}) > 1, "they did not run at once"
    assert lattice.audit.verify().records == len(found)
    assert fault(lattice) is None


FIELDS = {
    "at": 7,
    "who": "somebody else",
    "verb": "queues resume",
    "target": "another",
    "reason": None,
    "before": '{"number":99}',
    "after": "{}",
    "begun": 3,
    "previous": "f" * 64,
    "hash": "e" * 64,
}


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(n=st.integers(1, RECORDS), name=st.sampled_from(sorted(FIELDS)))
def test_a_changed_field_is_found(chained: Lattice, n: int, name: str) -> None:
    """I13"""
    with tampered(chained, (f"update lattice_audit set {name} = %s where n = %s", FIELDS[name], n)):
        assert fault(chained) == (n, "changed")

    assert fault(chained) is None


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(n=st.integers(1, RECORDS))
def test_a_removed_record_is_found(chained: Lattice, n: int) -> None:
    """I13: removed, moved away, or given to another namespace."""
    for text in (
        "delete from lattice_audit where n = %s",
        "update lattice_audit set namespace_id = namespace_id + 1 where n = %s",
    ):
        with tampered(chained, (text, n)):
            assert fault(chained) == ((n, "removed") if n < RECORDS else (n, "cut_off"))
    with tampered(chained, ("update lattice_audit set n = 40 where n = %s", n)):
        assert fault(chained) == (n, "removed")


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(pair=st.lists(st.integers(1, RECORDS), min_size=2, max_size=2, unique=True))
def test_swapped_records_are_found(chained: Lattice, pair: list[int]) -> None:
    """I13"""
    move = "update lattice_audit set n = %s where n = %s"
    with tampered(chained, (move, 1_000, pair[0]), (move, pair[0], pair[1]), (move, pair[1], 1_000)):
        assert fault(chained) == (min(pair), "reordered")
        assert f"record {max(pair)}" in chained.audit.verify().fault.detail


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(kept=st.integers(0, RECORDS - 1))
def test_a_cut_tail_is_found_against_the_head(chained: Lattice, kept: int) -> None:
    """I13"""
    with tampered(chained, ("delete from lattice_audit where n > %s", kept)):
        assert fault(chained) == (kept + 1, "cut_off")


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(n=st.integers(1, RECORDS))
def test_a_record_that_is_rewritten_with_its_hash_is_found(chained: Lattice, n: int) -> None:
    """I13: the next record, or the head, still has the hash that it had."""
    with chained.engine.session() as session:
        (row,) = audit_rows.page(session, chained.namespace_id, n - 1, 1)
    forged = row._replace(who="nobody")
    forged = forged._replace(hash=audit_room._digest(chained.namespace_id, forged))

    with tampered(chained, ("update lattice_audit set who = %s, hash = %s where n = %s", "nobody", forged.hash, n)):
        assert fault(chained) == (n, "changed")


@pytest.mark.parametrize(
    ("statement", "found"),
    [
        ("delete from lattice_audit_head", (RECORDS, "removed")),
        (f"update lattice_audit_head set n = {RECORDS - 2}", (RECORDS - 1, "changed")),
        ("update lattice_audit_head set hash = 'x'", (RECORDS, "changed")),
        ("update lattice_audit_head set n = 100", (RECORDS + 1, "cut_off")),
    ],
)
def test_a_head_that_does_not_fit_is_found(chained: Lattice, statement: str, found: tuple[int, str]) -> None:
    """I13"""
    with tampered(chained, (statement,)):
        assert fault(chained) == found


def test_a_chain_is_walked_in_pages(chained: Lattice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_room, "_PAGE", 5)
    pages: list[int] = []

    verdict = chained.audit.verify(pages.append)

    assert (verdict.records, verdict.fault, pages) == (RECORDS, None, [5, 5, 2])
    assert verdict.head == chained.audit.list(limit=1)[0].hash


def test_every_field_is_hashed() -> None:
    row = AuditRow(1, 2, "who", "verb", "target", None, "{}", "{}", None, "0" * 64, "")

    def digests() -> Iterator[str]:
        yield audit_room._digest(1, row)
        yield audit_room._digest(2, row)
        for name in row._fields[:-1]:
            yield audit_room._digest(1, row._replace(**{name: "other"}))
        yield audit_room._digest(1, row._replace(who="whov", verb="erb"))

    found = list(digests())
    assert len(set(found)) == len(found)
