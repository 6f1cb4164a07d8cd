"""What the pump sleeps on. Ringing costs next to nothing while nobody sleeps."""

import threading
from collections.abc import Callable

__all__ = ["Bell"]


class Bell:
    """One thread waits, any thread rings.

    A lock, because `SimpleQueue.get(timeout)` can sleep for ever: when it is delayed between reading the clock twice, what
    is left of its time becomes negative, which to it means no limit (seen on CPython 3.11 and 3.12).
    """

    def __init__(self) -> None:
        self._silence = threading.Lock()  # released: it rings
        self._silence.acquire()
        self._is_armed = False

    def ring(self) -> None:
        """Wake the waiting thread, now or the next time it waits."""
        self._is_armed = False
        try:
            self._silence.release()
        except RuntimeError:  # it rings already
            return

    def ring_if_waiting(self) -> None:
        """Wake the waiting thread; one that is awake looks for itself before it waits."""
        if self._is_armed:
            self.ring()

    def wait(self, has_reason: Callable[[], bool], patience_s: Callable[[], float]) -> None:
        """Return at once when there is reason to work, else at a ring or when patience ends."""
        if not has_reason():
            self._is_armed = True
            if not has_reason():  # what came between the two looks did not ring
                self._silence.acquire(timeout=patience_s())
            self._is_armed = False

    def quiet(self) -> None:
        """Forget the rings that came meanwhile: the look that follows sees what they were about."""
        self._silence.acquire(blocking=False)
