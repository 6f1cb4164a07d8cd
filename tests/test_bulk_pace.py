"""How fast a plan goes and when it stops, by a clock that the tests hold."""

import pytest

from lattice_tasks.tasks.pace import Meter, Pace, StopRule


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize("step_s", [0.001, 0.02, 0.3])
def test_a_rate_is_kept_whatever_each_part_takes(step_s: float) -> None:
    clock, sent = Clock(), 0
    pace = Pace(500, clock)

    while clock.now < 120:
        due = pace.due(1_000)
        pace.take(due)
        sent += due
        clock.now += step_s

    assert sent == pytest.approx(500 * 20, rel=0.02)


def test_who_fell_behind_catches_up_a_second_and_no_more() -> None:
    clock = Clock()
    pace = Pace(10, clock)
    pace.take(pace.due(100))

    clock.now += 60

    assert pace.due(100) == 10
    pace.take(10)
    assert pace.due(100) == 0
    clock.now += 0.5
    assert pace.due(100) == 5


def test_a_slow_rate_sends_the_first_at_once() -> None:
    clock = Clock()
    pace = Pace(0.1, clock)

    assert pace.due(5) == 1
    pace.take(1)
    clock.now += 9.9
    assert pace.due(5) == 0
    clock.now += 0.2
    assert pace.due(5) == 1


def test_the_rule_speaks_when_too_many_of_the_last_failed() -> None:
    rule = StopRule(0.2, window=20, least=10)

    rule.add([False] * 9)
    assert rule.verdict() is None
    rule.add([True])
    assert rule.verdict() == "9 of the last 10 replays failed again, which is more than 20%"
    rule.add([True] * 20)
    assert rule.verdict() is None
    rule.add([False] * 4)
    assert rule.verdict() is None
    rule.add([False])
    assert rule.verdict() == "5 of the last 20 replays failed again, which is more than 20%"


def test_a_rule_of_all_never_speaks() -> None:
    rule = StopRule(1.0)

    rule.add([False] * 50)

    assert rule.verdict() is None
    assert StopRule(0.0).of(1, 1_000) is not None
    assert StopRule(0.0).of(0, 0) is None


def test_the_meter_tells_the_rate_of_late() -> None:
    clock = Clock()
    meter = Meter(clock)

    assert meter.add(0) == 0
    clock.now += 5
    assert meter.add(50) == 10
    for second in range(1, 21):
        clock.now += 1
        rate = meter.add(50 + 100 * second)
    assert rate == pytest.approx(100)
