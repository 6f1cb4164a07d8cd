"""Attempts and dead letters beside a RabbitMQ that restarts, or is not there at all: it has no part in them."""

import threading
from typing import Any

import pytest

from tests.servers import RabbitMQ, free_port
from tests.working import opened, until, until_state, working

LOOKS = 100


@pytest.mark.slow
def test_a_restart_of_the_broker_between_failures_changes_no_count(store_url: str, own_rabbitmq: RabbitMQ) -> None:
    """C24: twice before, twice after; what a message carries on the broker has no count to lose."""
    own_rabbitmq.start()
    with opened(store_url, broker_url=own_rabbitmq.url) as lattice:
        ran: list[int] = []
        gate = threading.Event()

        @lattice.task(queue="q", max_retries=3, min_backoff=10, max_backoff=20)
        def fail() -> None:
            ran.append(1)
            if len(ran) == 3:
                assert gate.wait(60)
            raise ValueError

        job = fail.submit()
        with working(lattice, threads=1):
            until(lambda: len(ran) == 3)
            own_rabbitmq.restart()
            gate.set()
            picture = until_state(job, "parked")

        (letter,) = lattice.dead_letters("q").list()
    assert (len(ran), picture.attempt, letter.attempts) == (4, 4, 4)


def test_letters_are_seen_as_they_are_while_the_broker_is_down(store_url: str) -> None:
    """C29: a hundred looks beside a replay; same order, same attempts, the right count, and nothing is held afterwards."""
    away = f"amqp://guest:guest@127.0.0.1:{free_port()}/"
    with opened(store_url, broker_url=away) as lattice:

        @lattice.task(queue="q", max_retries=1, min_backoff=1, max_backoff=2)
        def fail(number: int) -> None:
            raise ValueError(number)

        with working(lattice, threads=1):
            for number in range(5):
                until_state(fail.submit(number), "parked")
            shelf = lattice.dead_letters("q")
            before = shelf.list()
            looks: list[tuple[list[Any], int]] = []
            looking = [threading.Thread(target=_look, args=(shelf, looks)) for _ in range(4)]
            for thread in looking:
                thread.start()
            replayed = shelf.replay(3, wait=15)
            for thread in looking:
                thread.join()

        after = shelf.list()
    assert (replayed.state, len(looks)) == ("parked", LOOKS)
    assert [letter.attempts for letter in before] == [2] * 5
    for seen, count in looks:
        assert ([letter.entry_id for letter in seen], count) == ([1, 2, 3, 4, 5], 5)
        assert [letter for letter in seen if letter.entry_id != 3] == [one for one in before if one.entry_id != 3]
    assert [letter.is_replaying for letter in after] == [False] * 5
    assert [letter.failed_replays for letter in after] == [0, 0, 1, 0, 0]


def _look(shelf: Any, looks: list[tuple[list[Any], int]]) -> None:
    for _ in range(LOOKS // 4):
        looks.append((shelf.list(), shelf.count()))
