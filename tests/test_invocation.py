"""The table of states: what may follow what, and what never changes again."""

import itertools

import pytest

from lattice_tasks.errors import InvalidOperation
from lattice_tasks.tasks.invocation import TRANSITIONS, State, drawing, step

FINISHED = {State.SUCCEEDED, State.CANCELLED, State.EXPIRED}
EVENTS = {event for _, event in TRANSITIONS}


def test_states_that_are_finished_never_change() -> None:
    """T-01"""
    assert {state for state in State if not any(before is state for before, _ in TRANSITIONS)} == FINISHED
    for state, event in itertools.product(FINISHED, EVENTS):
        with pytest.raises(InvalidOperation, match=f"an invocation that is {state} cannot"):
            step(state, event)


def test_a_discarded_one_comes_back_by_a_restore_alone() -> None:
    assert [event for before, event in TRANSITIONS if before is State.DISCARDED] == ["restore"]
    assert step(State.DISCARDED, "restore") is State.PARKED


def test_every_state_can_be_reached_and_left_for_an_end() -> None:
    """T-01"""
    reached = {State.NEW}
    for _ in State:
        reached |= {after for (before, _), after in TRANSITIONS.items() if before in reached}
    leading = {*FINISHED, State.DISCARDED}
    for _ in State:
        leading |= {before for (before, _), after in TRANSITIONS.items() if after in leading}

    assert reached == set(State)
    assert leading == set(State)


def test_only_a_running_invocation_succeeds_fails_or_is_lost() -> None:
    """T-01, T-05, T-06"""
    for event in ("succeed", "retry", "park", "hold", "expire", "lose_worker", "release"):
        assert [before for before, known in TRANSITIONS if known == event and before is not State.HELD] == [
            State.RUNNING
        ]
    assert step(State.RUNNING, "lose_worker") is State.WAITING
    assert step(State.RUNNING, "retry") is State.SCHEDULED


def test_a_code_or_a_place_tells_the_state() -> None:
    resting = [state for state in State if state.code]

    assert [State.of(state.code) for state in resting] == resting
    assert {State.of(0, place) for place in ("ready", "scheduled", "lease")} == {s for s in State if s.is_open}
    assert State.of(0) is State.WAITING


def test_the_drawing_shows_every_state_and_every_way() -> None:
    lines = drawing().splitlines()

    assert [line.split()[0] for line in lines] == [str(state) for state in State]
    assert sum(line.count("→") for line in lines) == len(TRANSITIONS)
    assert {line.split()[0] for line in lines if "■" in line} == {str(state) for state in FINISHED}
