"""What the pump sleeps on. Ringing costs next to nothing while nobody sleeps."""

from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue

__all__ = ["Bell"]


class Bell:
    """One thread waits, any thread rings."""

    def __init__(self) -> None:
        self._tokens: SimpleQueue[None] = SimpleQueue()
        self._is_armed = False

    def ring(self) -> None:
        """Wake the waiting thread, now or the next time it waits."""
        self._is_armed = False
        self._tokens.put(None)

    def ring_if_waiting(self) -> None:
        """Wake the waiting thread; one that is awake looks for itself before it waits."""
        if self._is_armed:
            self.ring()

    def wait(self, has_reason: Callable[[], bool], patience_s: Callable[[], float]) -> None:
        """Return at once when there is reason to work, else at a ring or when patience ends."""
        if not has_reason():
            self._is_armed = True
            if not has_reason():  # what came between the two looks did not ring
                with suppress(Empty):
                    self._tokens.get(timeout=patience_s())
            self._is_armed = False

    def quiet(self) -> None:
        """Forget the rings that came meanwhile: the look that follows sees what they were about."""
        while not self._tokens.empty():
            self._tokens.get()
