"""Wake-ups that are lost, forged or garbage change latency, never an outcome."""

import json
import os
import random
import signal
import sys
import time
from contextlib import suppress

import psycopg

from lattice_tasks.broker.amqp import WAKE
from lattice_tasks.tasks.invocation import State
from tests.paths import wakes
from tests.paths.apps.deaf import drop_wake_ups
from tests.paths.conftest import Begin


def test_a_submitter_killed_between_commit_and_wake_up_has_submitted(anywhere: Begin) -> None:
    """T-02, C01, faults 3: the answer is unknown, the task runs within one poll, once."""
    life = anywhere(poll_ms=1_000)
    worker = life.worker()
    life.submit("work", "first")
    life.finished()

    submitter = life.run([sys.executable, "-m", "tests.paths.apps.dying_submitter", "orphan"])

    assert submitter.wait() == -signal.SIGKILL
    (fault,) = life.history.of("fault", victim=submitter.pid)
    (start,) = life.started("orphan")
    assert start["at"] - fault["at"] < 1.5
    assert start["pid"] == worker.pid
    life.finished()
    assert life.history.of("accepted", name="orphan") == []
    assert life.checked(budget=1)["orphan"].state is State.SUCCEEDED


def test_what_was_rolled_back_wakes_nobody_and_never_runs(served: Begin) -> None:
    """C01: the caller's transaction decides."""
    life = served()
    life.worker()
    life.submit("work", "before")
    life.finished()
    told = life.history.events("wakeup.received")

    with psycopg.connect(life.store_url) as connection:
        with suppress(ZeroDivisionError), life.lattice.transaction(connection):
            life.lattice.submit("lives", "work", ("never",))
            raise ZeroDivisionError
    life.submit("work", "after")
    life.finished()

    assert set(life.checked(budget=1)) == {"before", "after"}
    assert len(life.history.events("wakeup.received")) > len(told)


def test_all_tasks_finish_when_all_wake_ups_are_lost(served: Begin) -> None:
    """Faults 9: submits, retries and hand-backs alike are found by polling."""
    life = served(poll_ms=300)
    vanished = drop_wake_ups(life.lattice.broker._parts.notifier)
    for _ in range(2):
        life.worker(LIVES_DROP="1")

    for number in range(60):
        life.submit("work" if number % 3 else "flaky", f"task{number}", 2)
    life.finished()

    assert vanished
    assert life.history.events("wakeup.received") == []
    assert {row.state for row in life.checked(budget=51).values()} == {State.SUCCEEDED}
    assert len(life.history.of("start")) == 40 + 20 * 3


def forged(count: int) -> list[bytes]:
    """Random bytes, forged tasks in every dress, and true wake-ups that nobody sent."""
    chance = random.Random(4)
    message = {
        "queue_name": "lives",
        "actor_name": "work",
        "args": ["ghost"],
        "kwargs": {},
        "options": {"retries": 0},
        "message_id": "0198c5b2-7d1e-7c4a-9f10-2b6d1c3e4f50",
        "message_timestamp": 1,
    }
    kinds = [
        b"\x80\x81",
        b"",
        b"{}",
        json.dumps(message).encode(),
        json.dumps({**message, "actor_name": "nobody"}).encode(),
        json.dumps({"v": 99, "wake": [1, 2, 3]}).encode(),
        WAKE + b"\n",
        WAKE,
        os.urandom(100),
        b"x" * 200_000,
    ]
    return [chance.choice(kinds) for _ in range(count)]


def test_a_thousand_forged_wake_ups_start_nothing_and_stop_nothing(served: Begin) -> None:
    """Security 2, C13: dropped and counted; the worker lives, stays connected, and good work goes on meanwhile."""
    life = served()
    workers = [life.worker(), life.worker()]
    bodies = forged(1_000)

    for part in range(10):
        wakes.publish(life, bodies[part * 100 : part * 100 + 100])
        life.submit("work", f"good{part}")
        (start,) = life.started(f"good{part}")
        assert start["at"] - life.history.of("accepted", name=f"good{part}")[0]["at"] < 1
    garbage = sum(body != WAKE for body in bodies)
    life.event("wakeup.garbage", garbage)
    life.finished()

    assert len(life.history.events("wakeup.garbage")) == garbage
    assert len(life.history.of("start")) == 10
    assert all(worker.is_alive for worker in workers)
    assert life.history.events("broker.unavailable") == []
    assert len(life.history.events("worker.started")) == 2
    assert not any("Restarting" in worker.text() or "Traceback" in worker.text() for worker in workers)
    life.checked(budget=1)


STORED = {
    "no text": (b"\x80\x81", "schema"),
    "nothing": (b"", "schema"),
    "an empty object": (b"{}", "schema"),
    "a list": (b"[1]", "schema"),
    "of the future": (b'{"v":99,"payload":"AAAA"}', "schema"),
    "wrong types": (b'{"args":{"a":1},"kwargs":[]}', "schema"),
    "too large": (b'{"args":["' + b"x" * 5_000 + b'"]}', "oversized"),
}


def test_stored_garbage_is_parked_once_with_its_bytes_and_good_work_goes_on(anywhere: Begin) -> None:
    """C13: undecodable, of the future, of an unknown actor, too large; each parked once, the good one behind runs."""
    life = anywhere(max_payload_bytes=4_096, unknown_actor_grace_ms=0)
    life.lattice.queues.add("lives")
    life.lattice.queues.pause("lives")
    ids = {}
    for name, (body, _reason) in STORED.items():
        ids[name] = life.lattice.submit("lives", "work", (name,)).id
        life.store.change("update lattice_invocation set body = %s where id = %s", body, ids[name])
    ids["unknown actor"] = life.lattice.submit("lives", "nobody", ("x",)).id
    worker = life.worker(threads=1)
    life.submit("work", "good")

    life.lattice.queues.resume("lives")
    resumed_at = time.monotonic()
    (start,) = life.started("good")
    life.finished()

    shelf = life.lattice.dead_letters("lives")
    letters = {letter.task_id: letter for letter in shelf.list()}
    assert start["at"] - resumed_at < 2  # the queue's state is a second old at most, and then within a second
    assert shelf.count() == len(ids)
    for name, (body, reason) in STORED.items():
        assert (letters[ids[name]].reason, bytes(letters[ids[name]].body)) == (reason, body), name
    assert letters[ids["unknown actor"]].reason == "actor_not_found"
    assert len(life.history.of("start")) == 1
    assert worker.is_alive
    assert len(life.history.events("worker.started")) == 1
