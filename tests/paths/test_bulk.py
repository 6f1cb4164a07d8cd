"""A plan whose applier is killed, interrupted, or both: it is applied again until it ends, and each letter is replayed once."""

import json
import random
import signal
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from lattice_tasks import Lattice
from tests.paths.conftest import Begin
from tests.paths.fleet import Life, settled
from tests.paths.processes import Process

pytestmark = pytest.mark.slow

APP = "tests.paths.apps.bulk"


class Bulk:
    """A life with parked letters of the app, a worker, and a plan for them."""

    def __init__(self, life: Life, count: int, verb: str = "replay") -> None:
        self.life = life
        self.count = count
        self.folder = life.folder
        self.lattice: Lattice = life.lattice
        (self.folder / "broken").touch()
        life.environment["BULK_FOLDER"] = str(self.folder)
        self.lattice.queues.add("bulk")
        life.worker(threads=4, app=APP, is_awaited=False)
        calls = [((number,), {}) for number in range(count)]
        self.lattice.submit_calls("bulk", "run", calls, {})
        settled(lambda: self.lattice.dead_letters("bulk").count() == count, "all parked")
        (self.folder / "broken").unlink()
        (self.folder / "runs").write_text("")
        self.plan = self.lattice.plans.make(verb=verb).id

    @property
    def now(self) -> Any:
        return self.lattice.plans.get(self.plan)

    def apply(self, *more: str, rate: int = 60) -> Process:
        command = ["dlq", "apply", self.plan, "--yes", "--no-canary", "--rate", str(rate), "-o", "json", *more]
        return self.life.run([sys.executable, "-m", "lattice_tasks", *command])

    def under_way(self, process: Process, beyond: int) -> None:
        """Wait until it has sent more than so many, and has some left."""
        total = self.count
        settled(lambda: total - self.now.waiting > beyond or not process.is_alive, "it to be at work")
        assert process.is_alive, process.text()
        assert 0 < self.now.waiting < total - beyond

    def runs(self) -> Counter[int]:
        return Counter(int(line) for line in Path(self.folder / "runs").read_text().split())


@pytest.mark.parametrize("verb", ["replay", "discard"])
def test_each_letter_is_settled_once_however_often_its_applier_is_killed(anywhere: Begin, verb: str) -> None:
    """I7: kill -9 at any moment, three times over."""
    bulk = Bulk(anywhere(), 150, verb)

    for kill in range(3):
        process = bulk.apply()
        bulk.under_way(process, beyond=kill * 30 + 5)
        threading.Event().wait(random.uniform(0, 0.2))  # progress shows when a part has committed: not just then
        bulk.life.kill(process.pid)
        process.wait()
        assert bulk.now.waiting > 0, "the kill came too late"
    last = bulk.apply(rate=1_000)

    assert last.wait() == 0, last.text()
    assert json.loads(last.text())["state"] == "finished"
    ended = bulk.now
    assert (ended.state, ended.done, ended.failed_again, ended.skipped) == ("finished", 150, 0, 0)
    assert bulk.runs() == (dict.fromkeys(range(150), 1) if verb == "replay" else {})
    assert bulk.lattice.dead_letters("bulk").count() == 0


def test_an_interrupted_plan_says_how_to_go_on(anywhere: Begin) -> None:
    """Ctrl-C leaves it paused, with exit code 130 and the command; the same goes for SIGTERM."""
    bulk = Bulk(anywhere(), 120)

    for number, beyond in ((signal.SIGINT, 5), (signal.SIGTERM, 30)):
        process = bulk.apply()
        bulk.under_way(process, beyond)
        process.signal(number)
        assert process.wait() == 130, process.text()
        assert f"is paused, go on with `lattice-tasks dlq apply {bulk.plan} --yes`" in process.text()
        assert (bulk.now.state, bulk.now.owner) == ("paused", None)
        assert bulk.now.waiting > 0
    last = bulk.apply(rate=1_000)

    assert last.wait() == 0, last.text()
    assert bulk.now.done == 120
    assert bulk.runs() == dict.fromkeys(range(120), 1)


def test_whoever_comes_second_takes_over_from_the_dead(anywhere: Begin) -> None:
    """It waits for a lease of the other's silence, and is told where the other lives."""
    bulk = Bulk(anywhere(), 150)
    first = bulk.apply(rate=3)
    bulk.under_way(first, 3)

    refused = bulk.apply()
    assert refused.wait() == 4
    assert "is being applied by" in refused.text()
    assert first.is_alive
    bulk.life.kill(first.pid)
    second = bulk.apply(rate=1_000)

    assert second.wait() == 0, second.text()
    assert bulk.now.done == 150
    assert bulk.runs() == dict.fromkeys(range(150), 1)
