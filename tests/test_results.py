"""The store as Dramatiq's result backend and as the backend of its rate limiters."""

from collections.abc import Iterator
from typing import Any

import pytest
from dramatiq.rate_limits import Barrier, BucketRateLimiter, ConcurrentRateLimiter, WindowRateLimiter
from dramatiq.results import ResultFailure, ResultMissing, ResultTimeout

from lattice_tasks import Lattice
from lattice_tasks.errors import ResultNotStored
from tests.working import heard, opened, until_state, working

pytestmark = pytest.mark.recycled


@pytest.fixture
def lattice(store_url: str) -> Iterator[Lattice]:
    with opened(store_url) as lattice:
        yield lattice


def test_results_are_read_in_dramatiqs_way_and_in_ours(lattice: Lattice) -> None:
    @lattice.task
    def double(number: int) -> dict[str, int]:
        return {"it is": 2 * number}

    @lattice.task(max_retries=0)
    def fail() -> None:
        raise ValueError("no")

    message, failing = double.send(4), fail.send()
    backend = lattice.broker.get_results_backend()
    with pytest.raises(ResultMissing):
        message.get_result(backend=backend)
    with pytest.raises(ResultTimeout):
        message.get_result(backend=backend, block=True, timeout=20)
    with working(lattice):
        assert message.get_result(backend=backend, block=True, timeout=10_000) == {"it is": 8}
        assert lattice.job(message.message_id).result(timeout=10) == {"it is": 8}
        with pytest.raises(ResultFailure, match="ValueError: no"):
            failing.get_result(backend=backend, block=True, timeout=10_000)
    unknown = double.message(1)
    with pytest.raises(ResultMissing):
        unknown.get_result(backend=backend)


@pytest.mark.parametrize(
    ("result", "told"),
    [
        (object(), "result not storable"),
        ("\ud800", "result not storable"),
        ("x" * 2_000_000, "result not stored: 2000002 bytes"),
    ],
    ids=["object", "surrogate", "large"],
)
def test_a_result_that_cannot_be_kept_is_told_and_the_task_has_succeeded(
    lattice: Lattice, result: Any, told: str
) -> None:
    @lattice.task
    def give() -> Any:
        return result

    job, events = give.submit(), heard(lattice)
    with working(lattice):
        picture = until_state(job, "succeeded")

    assert told in picture.error
    with pytest.raises(ResultNotStored, match=told):
        job.result()
    assert told in events.of("settle.degraded")[0]["error"]


@pytest.mark.parametrize("result", [None, 0, False, "", [], {}, "a\0b", 1.5, [1, {"é": None}]], ids=repr)
def test_any_json_comes_back_as_the_result(sqlite_url: str, result: Any) -> None:
    with opened(sqlite_url) as lattice:

        @lattice.task
        def give() -> Any:
            return result

        job = give.submit()
        with working(lattice):
            assert repr(job.result(timeout=10)) == repr(result)


def test_rate_limiters_keep_their_counts_in_the_store_and_in_their_namespace(store_url: str) -> None:
    """L-21: another namespace has a limit of its own."""
    with opened(store_url) as lattice, opened(store_url) as same, opened(store_url, namespace="b") as other:
        backends = [one.broker.rate_limiter_backend for one in (lattice, same, other)]

        concurrent = [ConcurrentRateLimiter(backend, "k", limit=1) for backend in backends]
        with concurrent[0].acquire(raise_on_failure=False) as first:
            with concurrent[1].acquire(raise_on_failure=False) as second, concurrent[2].acquire() as third:
                assert (first, second, third) == (True, False, True)
        with concurrent[1].acquire() as again:
            assert again

        for limiter in (
            lambda backend: BucketRateLimiter(backend, "bucket", limit=2, bucket=60_000),
            lambda backend: WindowRateLimiter(backend, "window", limit=2, window=60),
        ):
            got = []
            for backend in (backends[0], backends[1], backends[0], backends[2]):
                with limiter(backend).acquire(raise_on_failure=False) as acquired:
                    got.append(acquired)
            assert got == [True, True, False, True]

        barrier = Barrier(backends[0], "barrier")
        assert barrier.create(2)
        assert not barrier.create(2)
        assert [Barrier(backends[1], "barrier").wait(block=False) for _ in range(2)] == [False, True]
        assert barrier.wait(timeout=100)
