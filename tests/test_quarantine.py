"""Who may start while a suspect is here: one at a time, so that a death charges the one that did it."""

import pytest

from lattice_tasks import clock
from lattice_tasks.broker.envelope import LatticeMessage
from lattice_tasks.broker.hand_over import HandOver
from lattice_tasks.broker.work_queue import WorkQueue
from lattice_tasks.dead_letters.parking import ShelfSpec
from lattice_tasks.settings import Settings
from lattice_tasks.store.turns import Claimed
from lattice_tasks.tasks.invocation import Flag
from lattice_tasks.tasks.settle import Kind, Outcome

PROVEN_NS = 6_000_000_000


class Process:
    """The way to the threads of one worker, with the pump's part played by the test."""

    def __init__(self) -> None:
        self.way = HandOver(Settings(), 4, WorkQueue(), lambda _claimed, _now_us: None)
        self.lane = self.way.open_lane("q", 1, ShelfSpec(1))
        self.held: list[LatticeMessage] = []
        self.recorded: list[int] = []

    def claim(self, *flags: int) -> list[LatticeMessage]:
        first = len(self.held) + 1
        rows = [Claimed(first + n, 1, 0, 0, flag, "id", "actor", b"{}", 0, None, None) for n, flag in enumerate(flags)]
        messages = self.way.receive(rows, 1, 0)
        self.way.deliver(messages)
        self.held += messages
        return messages

    def start_next(self) -> list[int]:
        """The seqs that a thread may begin now."""
        self.way.start_next(lambda one: not self.recorded.append(one.claimed.seq), self.held)
        return [one.claimed.seq for one in self.lane.take_back()]

    def settle(self, message: LatticeMessage) -> None:
        self.held.remove(message)
        self.way.forget(message)


def begin(message: LatticeMessage, ago_ns: int = 0) -> None:
    message.started_ns = clock.monotonic_ns() - ago_ns


def end(message: LatticeMessage) -> None:
    message.outcome = Outcome(Kind.SUCCEED)


@pytest.fixture
def process() -> Process:
    return Process()


def test_suspects_start_one_by_one_and_their_starts_are_recorded(process: Process) -> None:
    first, second = process.claim(Flag.SUSPECT, Flag.SUSPECT)

    assert process.start_next() == [1]
    begin(first)
    assert process.start_next() == []
    end(first)
    process.settle(first)

    assert process.start_next() == [second.claimed.seq]
    assert process.recorded == [1, 2]


def test_the_next_suspect_waits_until_the_end_of_the_one_before_is_stored(process: Process) -> None:
    """Its start is still on record: a death of the process would charge it, though it has ended."""
    first, _ = process.claim(Flag.SUSPECT, Flag.SUSPECT)
    process.start_next()
    begin(first)
    end(first)

    assert process.start_next() == []
    process.settle(first)
    assert process.start_next() == [2]


def test_what_waits_behind_waits_until_the_suspects_end_is_stored(process: Process) -> None:
    suspect, fresh = process.claim(Flag.SUSPECT, 0)
    process.start_next()
    begin(suspect)
    end(suspect)

    assert process.start_next() == []
    process.settle(suspect)
    assert process.start_next() == [fresh.claimed.seq]


def test_a_suspect_waits_for_what_else_runs_here(process: Process) -> None:
    """A young task beside it may be the one that kills, and the suspect would be charged for it."""
    (fresh,) = process.claim(0)
    process.lane.take_back()
    process.claim(Flag.SUSPECT)

    assert process.start_next() == []
    begin(fresh)
    assert process.start_next() == []
    end(fresh)
    assert process.start_next() == [2]


def test_a_suspect_does_not_wait_for_what_has_survived_long_enough(process: Process) -> None:
    (old,) = process.claim(0)
    process.lane.take_back()
    begin(old, PROVEN_NS)
    process.claim(Flag.SUSPECT)

    assert process.start_next() == [2]


def test_a_suspect_that_survives_long_enough_lets_the_others_go_on(process: Process) -> None:
    first, _, fresh = process.claim(Flag.SUSPECT, Flag.SUSPECT, 0)
    process.start_next()
    begin(first, PROVEN_NS)

    assert process.start_next() == [2]
    begin(process.held[1], PROVEN_NS)
    assert process.start_next() == [fresh.claimed.seq]


def test_what_no_thread_has_begun_waits_behind_a_suspect(process: Process) -> None:
    process.claim(0, Flag.SUSPECT)

    assert process.start_next() == [2]
    process.settle(process.held[1])
    assert process.start_next() == [1]
