"""The typed queue against a model, with the process dying at every statement: begin, commit and their answers too."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from lattice_tasks.fifo import Fifo, LatticeQueue
from lattice_tasks.store.engine import Engine, Session, Statement
from tests.stores import Crash, fresh_engine


@pytest.fixture
def engine(store_url: str) -> Iterator[Engine]:
    with fresh_engine(store_url) as engine:
        yield engine


WORDS = ("begin", "select", "insert", "delete", "update", "commit")
#: What each call says to the store, so where it can die.
SPOKEN = {
    "enqueue": WORDS,
    "dequeue": ("begin", "select", "delete", "update", "commit"),
    "remove": ("begin", "select", "delete", "update", "commit"),
}


@dataclass(frozen=True)
class Death:
    """Before or after the n-th statement that begins with this word."""

    word: str
    number: int
    is_after: bool


class Mortal(Session):
    """Dies before its first or second statement of a kind, or after it: then nobody hears the answer."""

    def __init__(self, session: Session, death: Death | None) -> None:
        super().__init__(session.raw, session.dialect)
        self._death = death
        self._seen: Counter[str] = Counter()
        self.died_of: str | None = None

    def fetch(self, statement: Statement, params: Any = ()) -> list[tuple]:
        return self._live(_word(statement.postgres), lambda: super(Mortal, self).fetch(statement, params))

    def execute(self, statement: Statement, params: Any = ()) -> int:
        return self._live(_word(statement.postgres), lambda: super(Mortal, self).execute(statement, params))

    def execute_many(self, statement: Statement, rows: Any) -> None:
        self._live(_word(statement.postgres), lambda: super(Mortal, self).execute_many(statement, rows))

    def _plain(self, sql: str) -> None:
        self._live(sql, lambda: super(Mortal, self)._plain(sql))

    def _take_turn(self) -> None:
        self._live("begin", super()._take_turn)

    def _live(self, word: str, step: Callable[[], Any]) -> Any:
        self._seen[word] += 1
        before, after = (Death(word, self._seen[word], is_after) for is_after in (False, True))
        if self._death == before:
            self._die(word)
        result = step()
        if self._death == after:
            self._die(f"answer of {word}")
        return result

    def _die(self, of: str) -> NoReturn:
        self.died_of = of
        self.raw.close()
        raise Crash


def _word(sql: str) -> str:
    return sql.split()[0]


class QueueMachine(RuleBasedStateMachine):
    """Clients come, change the queue, and die at any statement; what a dead one had not committed never was."""

    engine: Engine
    runs: Iterator[int]
    deaths: set[tuple[str, str]]

    @initialize()
    def begin(self) -> None:
        self.name = f"machine {next(self.runs)}"
        self.session = self.engine.open_session()
        self.entries: dict[int, int] = {}
        self.next_id = 1
        self.value = 0

    def teardown(self) -> None:
        self.session.close()

    def change(self, verb: str, death: Death | None, step: Callable[[Session], Any]) -> tuple[bool, Any]:
        """Whether it was committed, and what it answered, if anybody was there to hear it."""
        session = Mortal(self.session, death)
        try:
            return True, step(session)
        except Crash:
            self.session = self.engine.open_session()
            self.deaths.add((verb, str(session.died_of)))
            return session.died_of == "answer of commit", None

    deaths_of_all_kinds = st.none() | st.builds(Death, st.sampled_from(WORDS), st.integers(1, 2), st.booleans())

    @rule(count=st.integers(1, 4), capacity=st.none() | st.integers(1, 5), death=deaths_of_all_kinds)
    def enqueue(self, count: int, capacity: int | None, death: Death | None) -> None:
        values = list(range(self.value, self.value + count))
        self.value += count
        is_done, ids = self.change(
            "enqueue",
            death,
            lambda session: LatticeQueue[int](session, self.name, capacity=capacity).enqueue_many(values),
        )
        if not is_done:
            return
        expected = list(range(self.next_id, self.next_id + count))
        assert ids in (None, expected)
        self.entries.update(zip(expected, values, strict=True))
        self.next_id += count
        while capacity is not None and len(self.entries) > capacity:
            del self.entries[min(self.entries)]

    @rule(death=deaths_of_all_kinds)
    def dequeue(self, death: Death | None) -> None:
        is_done, entry = self.change(
            "dequeue", death, lambda session: LatticeQueue[int](session, self.name).try_dequeue()
        )
        if not is_done:
            return
        head = min(self.entries, default=None)
        value = self.entries.pop(head) if head is not None else None
        assert entry is None or (entry.entry_id, entry.value) == (head, value)

    @rule(entry_id=st.integers(0, 15), death=deaths_of_all_kinds)
    def remove(self, entry_id: int, death: Death | None) -> None:
        is_done, was_there = self.change(
            "remove",
            death,
            lambda session: Fifo(session, f"_lattice_queue_{self.name}").remove(entry_id),
        )
        if is_done:
            assert was_there in (None, entry_id in self.entries)
            self.entries.pop(entry_id, None)

    @invariant()
    def shows_what_the_model_holds(self) -> None:
        queue = LatticeQueue[int](self.session, self.name)
        found = [(entry.entry_id, entry.value) for entry in queue.list()]
        assert found == sorted(self.entries.items())
        assert queue.count() == len(found)
        head = queue.peek()
        assert (head and head.entry_id) == min(self.entries, default=None)


@pytest.fixture
def machine(engine: Engine) -> type[QueueMachine]:
    return type("Machine", (QueueMachine,), {"engine": engine, "runs": iter(range(10**9)), "deaths": set()})


def test_any_calls_and_deaths_agree_with_the_model(machine: type[QueueMachine]) -> None:
    """Q-30..Q-36, Q-40, Q-41, Q-49, Q-53..Q-56: all of a call or nothing of it, and no id twice."""
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=50, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )

    assert len(machine.deaths) > 10


@pytest.mark.recycled
@pytest.mark.parametrize("is_after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(("verb", "word"), [(verb, word) for verb, words in SPOKEN.items() for word in words])
def test_a_client_may_die_at_any_statement(machine: type[QueueMachine], verb: str, word: str, is_after: bool) -> None:
    """Q-34..Q-36, Q-40, Q-41, Q-49: before the statement, or before its answer is heard; then life goes on."""
    model, death = machine(), Death(word, 1, is_after)
    model.begin()
    for _ in range(3):
        model.enqueue(count=1, capacity=3, death=None)

    if verb == "enqueue":
        model.enqueue(count=2, capacity=3, death=death)
    elif verb == "dequeue":
        model.dequeue(death=death)
    else:
        model.remove(entry_id=3, death=death)

    assert machine.deaths == {(verb, f"answer of {word}" if is_after else word)}
    model.shows_what_the_model_holds()
    model.enqueue(count=2, capacity=3, death=None)
    model.dequeue(death=None)
    model.shows_what_the_model_holds()
    model.teardown()
