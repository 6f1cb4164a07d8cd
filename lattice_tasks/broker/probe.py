"""Asking RabbitMQ whether it is there: one connection, opened and closed. For probes and people, not for work."""

import pika
from pika.exceptions import AMQPError

from lattice_tasks.broker.amqp import parameters
from lattice_tasks.errors import BrokerUnavailable
from lattice_tasks.masking import masked

__all__ = ["probe"]

_TIMEOUT_S = 3


def probe(broker_url: str) -> dict[str, str]:
    """Each URL of the `;`-separated list, masked, and the version of the server that answers there.

    Raises:
        BrokerUnavailable: none answers, or it refuses the login or the virtual host.
        SettingsError: it is no AMQP URL.
    """
    answered, refused = {}, []
    for url, one in zip(broker_url.split(";"), parameters(broker_url), strict=True):
        one.socket_timeout = one.stack_timeout = one.blocked_connection_timeout = _TIMEOUT_S
        try:
            connection = pika.BlockingConnection(one)
            properties = connection._impl.server_properties or {}
            answered[masked(url.strip())] = str(properties.get("version", "of unknown version"))
            connection.close()
        except (AMQPError, OSError) as error:
            refused.append(f"{masked(url.strip())}: {masked(_reason(error))}")
    if not answered:
        raise BrokerUnavailable(f"RabbitMQ cannot be reached at {'; '.join(refused)}")
    return answered


def _reason(error: BaseException) -> str:
    """What happened, in words: pika wraps it in errors without a text."""
    inner = next((each for each in vars(error).values() if isinstance(each, BaseException)), None)
    inner = inner or next((each for each in error.args if isinstance(each, BaseException)), None)
    return _reason(inner) if inner is not None else " ".join(str(error).split()) or type(error).__name__
