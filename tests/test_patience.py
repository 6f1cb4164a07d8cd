"""How long an idle pump waits, and what an announcement changes."""

from types import SimpleNamespace
from typing import Any

import pytest

from lattice_tasks import clock
from lattice_tasks.broker.amqp import SOON, WAKE
from lattice_tasks.broker.patience import Patience
from lattice_tasks.settings import load
from tests.working import opened, until


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A monotonic clock that stands still until it is moved."""
    hand = SimpleNamespace(s=100.0)
    monkeypatch.setattr(clock, "monotonic", lambda: hand.s)
    return hand


def patience(is_connected: bool = False, is_embedded: bool = False) -> Patience:
    settings = load({"poll_ms": 1_000}, {})
    return Patience(settings, SimpleNamespace(is_connected=is_connected), is_embedded)


@pytest.mark.parametrize(("is_connected", "every_s"), [(True, 1.0), (False, 0.25)])
def test_an_idle_worker_looks_often_only_without_wake_ups(now: Any, is_connected: bool, every_s: float) -> None:
    waiting = patience(is_connected)
    waiting.looked(found=False)

    assert not waiting.is_over
    assert waiting.left_s() == pytest.approx(every_s)
    now.s += every_s
    assert waiting.is_over


def test_announced_work_is_looked_for_again_and_again_for_a_moment(now: Any) -> None:
    waiting = patience(is_connected=True)
    waiting.looked(found=False)

    waiting.expect()

    looks = 0
    for _ in range(100):
        now.s += 0.0001
        if waiting.is_over:
            waiting.looked(found=False)
            looks += 1
    assert 5 <= looks <= 8, "for four milliseconds, every 0.6"
    assert waiting.left_s() > 0.9


def test_work_that_was_found_ends_the_expectation(now: Any) -> None:
    waiting = patience(is_connected=True)
    waiting.expect()

    waiting.looked(found=True)

    assert waiting.left_s() == pytest.approx(1.0)


def test_the_longer_a_file_rests_the_less_often_it_is_looked_at(now: Any) -> None:
    waiting = patience(is_embedded=True)
    waiting.looked(found=True)
    seen = []
    for rested_s in (0, 30, 300):
        now.s = 100.0 + rested_s
        waiting.looked(found=False)
        seen.append(waiting.left_s())

    assert seen == sorted(seen)
    assert seen[-1] <= 0.2, "others within 200 ms"


def test_a_submit_is_announced_before_its_commit_and_notified_after_it(postgres_url: str, rabbitmq_url: str) -> None:
    with opened(postgres_url, broker_url=rabbitmq_url) as lattice:
        sent: list[tuple[bytes, bool]] = []
        lattice.submit("orders", "book")
        notifier = lattice.broker._parts.notifier
        until(lambda: notifier.is_connected and clock.monotonic() - notifier._flushed_at > 0.1)
        notifier._send = lambda ids, body: sent.append((body, lattice.queues.depth("orders").waiting == 2))

        job = lattice.submit("orders", "book")

        until(lambda: (WAKE, True) in sent)
        assert sent[0][0] == SOON
        assert job.refresh().state == "waiting"


def test_a_busy_submitter_announces_nothing(postgres_url: str, rabbitmq_url: str) -> None:
    with opened(postgres_url, broker_url=rabbitmq_url) as lattice:
        lattice.submit("orders", "book")
        notifier = lattice.broker._parts.notifier
        until(lambda: notifier.is_connected)
        notifier._flushed_at = clock.monotonic() + 60

        notifier.announce((1,))

        assert not notifier._announced
