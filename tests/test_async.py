"""Coroutine functions as tasks, with Dramatiq's AsyncIO middleware."""

import asyncio
from collections.abc import Iterator

import dramatiq
import pytest
from dramatiq.middleware.asyncio import AsyncIO

from lattice_tasks import Lattice, current
from tests.working import done, opened, states, working

pytestmark = pytest.mark.recycled


@pytest.fixture
def lattice(store_url: str) -> Iterator[Lattice]:
    with opened(store_url) as lattice:
        lattice.broker.add_middleware(AsyncIO())
        yield lattice


def test_coroutines_run_answer_fail_and_know_themselves(lattice: Lattice) -> None:
    @lattice.task
    async def double(number: int) -> list[object]:
        await asyncio.sleep(0)
        return [2 * number, current.invocation.id]

    @dramatiq.actor(broker=lattice.broker, max_retries=0)
    async def fail() -> None:
        await asyncio.sleep(0)
        raise ValueError("no")

    jobs = double.submit_many([(number,) for number in range(20)])
    failing = lattice.job(fail.send().message_id)
    with working(lattice, threads=4):
        done(lattice)
        assert [job.result(timeout=5) for job in jobs] == [[2 * n, job.id] for n, job in enumerate(jobs)]
    assert states([failing]) == ["parked"]
    assert lattice.dead_letters("default").list()[0].error == "ValueError: no"
