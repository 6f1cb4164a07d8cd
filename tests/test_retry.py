"""The pure decision about a failure: how often, and after which wait."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice_tasks.tasks.retry import MAX_BACKOFF_MS, Policy, Verdict, backoff_ms, decide

ERROR = ValueError("no")
FAILURES = st.integers(0, 100_000)
SPANS = st.integers(0, MAX_BACKOFF_MS * 2)


@given(FAILURES, SPANS, SPANS, st.floats(0, 1))
def test_a_wait_is_never_below_the_minimum_nor_above_the_maximum(
    failures: int, min_backoff: int, max_backoff: int, at: float
) -> None:
    """C23"""
    policy = Policy(min_backoff=min_backoff, max_backoff=max_backoff)

    wait_ms = backoff_ms(failures, policy, spread=lambda low, high: low + (high - low) * at)

    ceiling = min(max_backoff, MAX_BACKOFF_MS)
    assert min(min_backoff, ceiling) <= wait_ms <= ceiling


def test_a_thousand_first_waits_are_at_least_the_minimum_and_differ() -> None:
    """C23"""
    waits = [backoff_ms(0, Policy(min_backoff=1_000)) for _ in range(1_000)]

    assert min(waits) >= 1_000
    assert max(waits) <= 2_000
    assert len(set(waits)) > 100


@given(st.integers(0, 30), st.integers(1, 10_000))
def test_waits_double(failures: int, min_backoff: int) -> None:
    policy = Policy(min_backoff=min_backoff, max_backoff=MAX_BACKOFF_MS)
    lowest = backoff_ms(failures, policy, spread=lambda low, high: low)

    assert lowest == min_backoff * 2**failures or lowest >= MAX_BACKOFF_MS // 2


def test_the_ten_thousandth_wait_neither_overflows_nor_passes_the_maximum() -> None:
    """C23"""
    assert 500 <= backoff_ms(10_000, Policy(min_backoff=1, max_backoff=1_000)) <= 1_000


@given(st.integers(0, 50), FAILURES)
def test_n_retries_are_n_plus_one_executions(max_retries: int, failures: int) -> None:
    """C23, T-06: `failures` are those before this one."""
    verdict = decide(ERROR, failures, Policy(max_retries, 0, 0))

    assert (verdict.delay_ms is None) == (failures >= max_retries)


@given(FAILURES)
def test_without_a_limit_it_goes_on_for_ever(failures: int) -> None:
    assert decide(ERROR, failures, Policy(None, 0, 0)).delay_ms == 0


@given(FAILURES, st.none() | st.integers(0, 10), st.booleans())
def test_the_predicate_and_the_limit_must_both_allow_a_retry(
    failures: int, max_retries: int | None, allows: bool
) -> None:
    """C23: a predicate that always says yes removes no limit."""
    policy = Policy(max_retries, 0, 0, retry_when=lambda count, error: allows)

    verdict = decide(ERROR, failures, policy)

    assert (verdict.delay_ms is not None) == (allows and (max_retries is None or failures < max_retries))


def test_the_predicate_sees_the_failures_so_far_and_the_exception() -> None:
    seen: list[tuple[int, BaseException]] = []
    policy = Policy(5, retry_when=lambda count, error: bool(seen.append((count, error))))

    assert decide(ERROR, 2, policy) == Verdict(None)
    assert seen == [(2, ERROR)]


@pytest.mark.parametrize("asked_ms", [0, 5_000])
def test_the_wait_that_the_task_asked_for_wins(asked_ms: int) -> None:
    assert decide(ERROR, 0, Policy(1), asked_ms) == Verdict(asked_ms)
    assert decide(ERROR, 1, Policy(1), asked_ms) == Verdict(None)
