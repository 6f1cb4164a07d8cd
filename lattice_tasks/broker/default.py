"""Dramatiq's global broker: the one piece of state that is Dramatiq's, not ours."""

import dramatiq

__all__ = ["set_default_broker"]


def set_default_broker(broker: dramatiq.Broker) -> None:
    """Let `@dramatiq.actor` and the `dramatiq` command use this broker."""
    dramatiq.set_broker(broker)
