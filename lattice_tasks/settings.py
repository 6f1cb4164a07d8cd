"""Frozen settings: arguments over `LATTICE_*` environment over `lattice.toml` over the defaults.

Bounds are checked here, once; nothing else reads the environment.
"""

import json
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, get_type_hints

from lattice_tasks.errors import SettingsError
from lattice_tasks.masking import masked

__all__ = ["DEFAULT_FILE", "VERSION", "Settings", "load"]

#: Of this package; read by the build as well. Looking it up in the installed metadata costs each worker half a megabyte.
VERSION = "0.1.0"
DEFAULT_FILE = "lattice.toml"

_SECRETS = (
    "apikey", "authorization", "cookie", "credential", "credentials", "key", "passphrase", "passwd", "password", "secret",
    "token",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Settings:
    """What a `Lattice` is built from. Spans are milliseconds, sizes bytes.

    Attributes:
        store_url: `sqlite:///file.db` (relative), `sqlite:////abs/file.db`, or `postgresql://…`.
        broker_url: `amqp://…`, several separated by `;`, or empty: no RabbitMQ, workers poll.
        namespace: whose queues these are; never taken from a submit.
        lease_ms: a worker whose heartbeat has not moved for so long is dead.
        heartbeat_ms: how often a worker beats; at most a third of the lease.
        poll_ms: how often an idle worker looks at the store when wake-ups work.
        retention_ms: how long finished invocations are kept, for queues that do not say otherwise.
        max_payload_bytes: of one task's encoded arguments, and of its result.
        max_depth: how deep arguments may be nested.
        lookahead_ms: how much work, in time, a worker claims beyond its free threads.
        lookahead_count: and at most so many.
        shelf_capacity: dead letters per queue before the oldest is evicted.
        dlq_poison_replays: a bulk plan leaves out letters of which so many replays have failed.
        dlq_restore_days: how long discarded and evicted letters can be restored; 0: they are not kept at all.
        fifo_capacity: entries of a FIFO queue, by its name, before the oldest is evicted; `*` for all others. A queue
            without either has no bound. A whole number alone means `*`; the environment takes that, or JSON.
        site_id: stamped on every change of a tree; unique among the sites that replicate trees.
        tree_grace_ms: how long deleted and expired keys of trees are kept for merging.
        unknown_actor_grace_ms: how long a task of an unknown actor is handed back before it is parked.
        pool_size: store connections for submits of one process.
        store_timeout_ms: how long a call waits for a connection, a lock or an answer.
        pgbouncer: True behind PgBouncer in transaction mode: no prepared statements, no start-up options.
        wake_queue_type: `classic` or `quorum`.
        clock_offset_ms: shifts the store's clock; for tests.
        redact: words; an argument whose name holds one of them is shown as `***`. The environment takes them separated by
            commas.
        log_level: debug, info, warning, error or critical; programs that run no worker log warnings at least, unless it
            is debug.
    """

    store_url: str = "sqlite:///lattice.db"
    broker_url: str = ""
    namespace: str = "default"
    lease_ms: int = 30_000
    heartbeat_ms: int = 0
    poll_ms: int = 1_000
    retention_ms: int = 7 * 86_400_000
    max_payload_bytes: int = 1_048_576
    max_depth: int = 64
    lookahead_ms: int = 50
    lookahead_count: int = 128
    shelf_capacity: int = 1_000
    dlq_poison_replays: int = 2
    dlq_restore_days: int = 7
    fifo_capacity: Mapping[str, int] = field(default_factory=dict)
    site_id: str = "local"
    tree_grace_ms: int = 86_400_000
    unknown_actor_grace_ms: int = 60_000
    pool_size: int = 20
    store_timeout_ms: int = 10_000
    pgbouncer: bool = False
    wake_queue_type: str = "classic"
    clock_offset_ms: int = 0
    redact: Sequence[str] = field(default_factory=lambda: list(_SECRETS))
    log_level: str = "info"

    def __repr__(self) -> str:
        shown = ", ".join(f"{f.name}={masked(str(getattr(self, f.name)))}" for f in fields(self))
        return f"Settings({shown})"

    def fifo_capacity_of(self, name: str, group: str = "") -> int | None:
        """The bound of the FIFO queue of this name, else of its group of lanes, else of all; None: no bound."""
        bounds = self.fifo_capacity
        return bounds.get(name) or bounds.get(group) or bounds.get(_ALL_FIFOS)

    @property
    def beat_ms(self) -> int:
        """How often a worker really beats: as set, or a fifth of the lease and at most every second."""
        return self.heartbeat_ms or min(1_000, self.lease_ms // 5)


#: Lowest and highest value of each whole-number setting.
_BOUNDS = {
    "lease_ms": (500, 86_400_000),
    "heartbeat_ms": (0, 28_800_000),
    "poll_ms": (10, 60_000),
    "retention_ms": (0, 10 * 365 * 86_400_000),
    "max_payload_bytes": (1_024, 16 * 1_048_576),
    "max_depth": (4, 1_000),
    "lookahead_ms": (0, 10_000),
    "lookahead_count": (0, 10_000),
    "shelf_capacity": (1, 10_000_000),
    "dlq_poison_replays": (1, 1_000_000),
    "dlq_restore_days": (0, 3_650),
    "tree_grace_ms": (0, 10 * 365 * 86_400_000),
    "unknown_actor_grace_ms": (0, 86_400_000),
    "pool_size": (1, 1_000),
    "store_timeout_ms": (100, 600_000),
    "clock_offset_ms": (-(2**40), 2**40),
}
_ALL_FIFOS = "*"
_SCHEMES = {"store_url": ("sqlite:///", "postgresql://", "postgres://"), "broker_url": ("amqp://", "amqps://")}
_LEVELS = ("debug", "info", "warning", "error", "critical")
_TRUE, _FALSE = {"1", "true", "yes", "on"}, {"0", "false", "no", "off", ""}


def load(
    given: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
    config: str | Path | None = None,
) -> Settings:
    """Settings from all four sources.

    Args:
        given: what the caller passed; None values count as not given.
        environment: `os.environ` unless given.
        config: a TOML file that must exist; without it `LATTICE_CONFIG`, then `lattice.toml` if it is there.

    Raises:
        SettingsError: an unknown name, a wrong type or a bound; says which and where.
    """
    environment = os.environ if environment is None else environment
    known = {f.name for f in fields(Settings)}
    values: dict[str, Any] = {}
    path = config or environment.get("LATTICE_CONFIG") or None
    for name, value in _read_file(path).items():
        _require_known(name, known, f"file {path or DEFAULT_FILE}")
        values[name] = _converted(name, value, f"file {path or DEFAULT_FILE}")
    for name in sorted(known):
        variable = "LATTICE_" + name.upper()
        if variable in environment:
            values[name] = _converted(name, environment[variable], f"environment variable {variable}")
    for name, value in (given or {}).items():
        _require_known(name, known, "arguments")
        if value is not None:
            values[name] = _converted(name, value, f"argument {name}")
    return _checked(Settings(**values))


def _read_file(path: str | Path | None) -> dict[str, Any]:
    if path is None and not Path(DEFAULT_FILE).is_file():
        return {}
    file = Path(path or DEFAULT_FILE)
    try:
        return tomllib.loads(file.read_text("utf-8"))
    except FileNotFoundError as error:
        raise SettingsError(f"settings file {file} does not exist") from error
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingsError(f"settings file {file} cannot be read: {error}") from error


def _require_known(name: str, known: set[str], source: str) -> None:
    if name not in known:
        raise SettingsError(f"unknown setting {name!r} in {source}; known: {', '.join(sorted(known))}")


def _converted(name: str, value: Any, source: str) -> Any:
    if name == "fifo_capacity":
        return _capacities(value, source)
    if name == "redact":
        return _words(value, source)
    wanted = get_type_hints(Settings)[name]
    if wanted is bool and isinstance(value, str) and value.lower() in _TRUE | _FALSE:
        return value.lower() in _TRUE
    if wanted is int and isinstance(value, str) and re.fullmatch(r"-?\d+", value.strip()):
        return int(value)
    if type(value) is not wanted:
        shown = masked(str(value))
        raise SettingsError(f"{source}: {name} must be {wanted.__name__}, not {shown!r}")
    return value


def _capacities(value: Any, source: str) -> dict[str, int]:
    given = value
    if isinstance(value, str):
        try:
            given = json.loads(value)
        except (ValueError, RecursionError):
            given = None
    bounds = given if isinstance(given, Mapping) else {_ALL_FIFOS: given}
    for name, bound in bounds.items():
        if not isinstance(name, str) or type(bound) is not int or bound < 1:
            shown = masked(str(value if given is None else bound))
            raise SettingsError(
                f"{source}: fifo_capacity of {name!r} must be a whole number from 1, not {shown!r}; "
                'write 1000, or a bound per queue such as {"work": 50, "*": 1000}'
            )
    return dict(bounds)


def _words(value: Any, source: str) -> list[str]:
    words = [word.strip() for word in value.split(",") if word.strip()] if isinstance(value, str) else value
    is_list = isinstance(words, list | tuple)
    if not is_list or not all(isinstance(word, str) and re.search("[A-Za-z0-9]", word) for word in words):
        raise SettingsError(f'{source}: redact must be a list of words such as ["password", "token"]')
    return list(words)


def _checked(settings: Settings) -> Settings:
    for name, (low, high) in _BOUNDS.items():
        value = getattr(settings, name)
        if not low <= value <= high:
            raise SettingsError(f"{name}={value} is outside {low} .. {high}")
    if settings.heartbeat_ms and settings.heartbeat_ms * 3 > settings.lease_ms:
        raise SettingsError(
            f"heartbeat_ms={settings.heartbeat_ms} is more than a third of lease_ms={settings.lease_ms}: "
            "a healthy worker would be taken for dead"
        )
    for name, schemes in _SCHEMES.items():
        for url in filter(None, getattr(settings, name).split(";" if name == "broker_url" else "\0")):
            if not url.strip().startswith(schemes):
                raise SettingsError(f"{name}={masked(url)!r} must start with {' or '.join(schemes)}")
    if not settings.store_url:
        raise SettingsError("store_url is empty; use sqlite:///lattice.db or postgresql://…")
    if settings.wake_queue_type not in ("classic", "quorum"):
        raise SettingsError(f"wake_queue_type={settings.wake_queue_type!r} must be classic or quorum")
    if settings.log_level not in _LEVELS:
        raise SettingsError(f"log_level={settings.log_level!r} must be one of {', '.join(_LEVELS)}")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", settings.site_id):
        raise SettingsError(
            f"site_id={settings.site_id!r} must be 1 to 64 letters, digits, dots, dashes or underscores, beginning with a "
            "letter or a digit"
        )
    if not 1 <= len(settings.namespace) <= 255 or not settings.namespace.isprintable():
        raise SettingsError(f"namespace={settings.namespace!r} must be 1 to 255 printable characters")
    return settings
