"""What follows from how an attempt ended: pure, no store, no broker.

n retries are n + 1 executions. `retry_when` and `max_retries` must both allow a retry.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass

from lattice_tasks import clock

__all__ = ["MAX_BACKOFF_MS", "Policy", "Verdict", "backoff_ms", "decide"]

#: Seven days, Dramatiq's own ceiling.
MAX_BACKOFF_MS = 7 * 86_400_000
#: Ten years: no task may put itself off for longer.
MAX_ASKED_MS = clock.MAX_DELAY_US // 1_000
_MAX_EXPONENT = 32


@dataclass(frozen=True, slots=True)
class Policy:
    """An actor's retry options, Dramatiq's names and units.

    Attributes:
        max_retries: None: no limit.
        min_backoff, max_backoff: milliseconds.
        retry_when: called with (failures before this one, exception).
    """

    max_retries: int | None = 4
    min_backoff: int = 15_000
    max_backoff: int = MAX_BACKOFF_MS
    retry_when: Callable[[int, BaseException], bool] | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """Retry after `delay_ms`, or, when that is None, park."""

    delay_ms: int | None


def backoff_ms(failures: int, policy: Policy, spread: Callable[[float, float], float] = random.uniform) -> int:
    """Wait before the next attempt after so many earlier failures: doubling, with jitter, never under `min_backoff`.

    Between min * 2**failures and twice that, at most `max_backoff` (which wins over `min_backoff` when it is smaller).
    """
    ceiling = min(policy.max_backoff, MAX_BACKOFF_MS)
    lowest = policy.min_backoff * 2 ** min(failures, _MAX_EXPONENT)
    if lowest >= ceiling:
        return int(max(min(policy.min_backoff, ceiling), ceiling * spread(0.5, 1.0)))
    return int(min(ceiling, lowest * spread(1.0, 2.0)))


def decide(exception: BaseException, failures: int, policy: Policy, asked_delay_ms: int | None = None) -> Verdict:
    """Retry or enough, after a failure.

    Args:
        failures: charged failures before this one.
        asked_delay_ms: the wait that the task itself asked for.
    """
    if policy.max_retries is not None and failures >= policy.max_retries:
        return Verdict(None)
    if policy.retry_when is not None and not policy.retry_when(failures, exception):
        return Verdict(None)
    if asked_delay_ms is not None:
        return Verdict(int(min(max(0, asked_delay_ms), MAX_ASKED_MS)))
    return Verdict(backoff_ms(failures, policy))
