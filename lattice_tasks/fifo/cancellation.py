"""The handle by which a caller takes a call back before it has happened."""

import threading
from datetime import timedelta

from lattice_tasks.clock import monotonic
from lattice_tasks.errors import CallCancelled, CallTimedOut, InvalidInput

__all__ = ["Cancellation"]


class Cancellation:
    """Shared by the caller and by whoever may change their mind; any thread may signal it, any number of calls use it.

    A call looks at it before it begins, once it holds the queue, and right before its commit: signalled by then, the
    call raises and nothing has changed. A wait for a busy queue is not cut short; `store_timeout_ms` bounds that.

    Args:
        timeout: after so long it counts as signalled, by this process's monotonic clock; zero: from the start.

    Raises:
        InvalidInput: the timeout is no timedelta, or negative.
    """

    def __init__(self, timeout: timedelta | None = None) -> None:
        if timeout is not None and (not isinstance(timeout, timedelta) or timeout < timedelta(0)):
            raise InvalidInput(f"timeout={timeout!r} must be None or a timedelta from zero")
        self._signal = threading.Event()
        self._timeout = timeout
        self._ends_at = None if timeout is None else monotonic() + timeout.total_seconds()

    def cancel(self) -> None:
        """Signal it, for good."""
        self._signal.set()

    @property
    def is_signalled(self) -> bool:
        """Whether it was cancelled or its time is over."""
        return self._signal.is_set() or self._is_over

    def check(self, what: str) -> None:
        """Return when nothing was signalled; `what` is the call, for the error.

        Raises:
            CallCancelled: somebody cancelled it.
            CallTimedOut: its time is over.
        """
        if self._signal.is_set():
            raise CallCancelled(f"{what} was cancelled; nothing was changed")
        if self._is_over:
            raise CallTimedOut(f"{what} did not get done within {self._timeout}; nothing was changed")

    @property
    def _is_over(self) -> bool:
        return self._ends_at is not None and monotonic() >= self._ends_at
