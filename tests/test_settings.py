"""Settings: where they come from, which wins, and what is refused before anything is opened."""

from dataclasses import FrozenInstanceError, fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice_tasks import Lattice
from lattice_tasks.errors import SettingsError, StoreError
from lattice_tasks.settings import Settings, load

CANARY = "s3cr3t-CANARY"


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def written(tmp_path: Path, text: str, name: str = "lattice.toml") -> Path:
    file = tmp_path / name
    file.write_text(text)
    return file


def test_arguments_win_over_the_environment_over_the_file_over_the_defaults(tmp_path: Path) -> None:
    written(tmp_path, 'lease_ms = 1000\npoll_ms = 2000\nnamespace = "of-file"\n')
    environment = {"LATTICE_POLL_MS": "3000", "LATTICE_NAMESPACE": "of-environment"}

    settings = load({"namespace": "of-argument"}, environment)

    assert (settings.lease_ms, settings.poll_ms, settings.namespace) == (1000, 3000, "of-argument")
    assert settings.retention_ms == Settings().retention_ms


def test_an_argument_that_is_none_counts_as_not_given() -> None:
    assert load({"store_url": None}, {"LATTICE_STORE_URL": "sqlite:///x.db"}).store_url == "sqlite:///x.db"


def test_a_named_file_is_read_instead_of_the_one_in_the_folder(tmp_path: Path) -> None:
    written(tmp_path, "lease_ms = 1000\n")
    other = written(tmp_path, "lease_ms = 5000\n", "other.toml")

    assert load({}, {}, other).lease_ms == 5000
    assert load({}, {"LATTICE_CONFIG": str(other)}).lease_ms == 5000


def test_other_variables_that_begin_alike_are_not_ours() -> None:
    load({}, {"LATTICE_TEST_POSTGRES_URL": "x", "LATTICE_SOMETHING": "y"})


@pytest.mark.parametrize(("text", "value"), [("1", True), ("true", True), ("ON", True), ("no", False), ("", False)])
def test_a_switch_in_the_environment_takes_the_usual_words(text: str, value: bool) -> None:
    assert load({}, {"LATTICE_PGBOUNCER": text}).pgbouncer is value


@pytest.mark.parametrize(
    ("given_value", "told"),
    [
        ({"colour": "red"}, "unknown setting 'colour'"),
        ({"lease_ms": "soon"}, "lease_ms must be int"),
        ({"lease_ms": 1.5}, "lease_ms must be int"),
        ({"lease_ms": True}, "lease_ms must be int"),
        ({"pgbouncer": "perhaps"}, "pgbouncer must be bool"),
        ({"namespace": 7}, "namespace must be str"),
        ({"lease_ms": 499}, "lease_ms=499 is outside"),
        ({"poll_ms": 0}, "poll_ms=0 is outside"),
        ({"pool_size": 0}, "pool_size=0 is outside"),
        ({"shelf_capacity": 0}, "shelf_capacity=0 is outside"),
        ({"retention_ms": -1}, "retention_ms=-1 is outside"),
        ({"store_url": ""}, "store_url is empty"),
        ({"store_url": "mysql://me@host/db"}, "store_url='mysql://me@host/db' must start with"),
        ({"store_url": "sqlite:lattice.db"}, "must start with sqlite:///"),
        ({"broker_url": "redis://host"}, "broker_url='redis://host' must start with amqp://"),
        ({"broker_url": "amqp://a;http://b"}, "broker_url='http://b' must start with"),
        ({"wake_queue_type": "stream"}, "wake_queue_type='stream'"),
        ({"log_level": "loud"}, "log_level='loud'"),
        ({"namespace": ""}, "namespace=''"),
        ({"namespace": "a\nb"}, "namespace="),
        ({"namespace": "x" * 256}, "namespace="),
        ({"namespace": "\ud800"}, "namespace="),
    ],
)
def test_a_wrong_setting_is_refused_by_name(given_value: dict[str, Any], told: str) -> None:
    with pytest.raises(SettingsError) as refused:
        load(given_value, {})

    assert told in str(refused.value)
    assert refused.value.exit_code == 78


@pytest.mark.parametrize(
    ("text", "told"),
    [("colour = 1\n", "in file"), ('lease_ms = "1"\nx = [', "cannot be read"), ("poll_ms = true\n", "poll_ms must be")],
)
def test_a_wrong_file_is_refused_by_its_name(tmp_path: Path, text: str, told: str) -> None:
    file = written(tmp_path, text)

    with pytest.raises(SettingsError, match=told) as refused:
        load({}, {}, file)

    assert str(file) in str(refused.value)


def test_a_wrong_variable_is_refused_by_its_name() -> None:
    with pytest.raises(SettingsError, match="environment variable LATTICE_LEASE_MS"):
        load({}, {"LATTICE_LEASE_MS": "soon"})


def test_a_named_file_has_to_exist(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="does not exist"):
        load({}, {}, tmp_path / "none.toml")


def test_a_heartbeat_of_more_than_a_third_of_the_lease_is_refused() -> None:
    """C09: a healthy worker would be taken for dead."""
    with pytest.raises(SettingsError, match="a third of lease_ms"):
        load({"lease_ms": 3000, "heartbeat_ms": 1001}, {})

    assert load({"lease_ms": 3000, "heartbeat_ms": 1000}, {}).beat_ms == 1000


@given(st.integers(500, 86_400_000))
def test_the_beat_that_nobody_chose_fits_into_the_lease(lease_ms: int) -> None:
    """C09"""
    assert 0 < load({"lease_ms": lease_ms}, {}).beat_ms * 3 <= lease_ms


def test_the_words_of_secrets_are_a_list_or_parted_by_commas(tmp_path: Path) -> None:
    file = written(tmp_path, 'redact = ["iban"]\n')

    assert load({}, {}, file).redact == ["iban"]
    assert load({}, {"LATTICE_REDACT": "iban, pin ,"}).redact == ["iban", "pin"]
    assert load({}, {"LATTICE_REDACT": ""}).redact == []
    for wrong in (7, ["ok", 7], ["---"]):
        with pytest.raises(SettingsError, match="redact must be a list of words"):
            load({"redact": wrong}, {})


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        Settings().lease_ms = 1  # type: ignore[misc]


def test_no_password_is_shown() -> None:
    secret = {"store_url": f"postgresql://me:{CANARY}@h/d", "broker_url": f"amqp://a:{CANARY}@x;amqp://b:{CANARY}@y"}
    wrong = {"store_url": f"mysql://me:{CANARY}@h/d"}

    with pytest.raises(SettingsError) as refused:
        load(wrong, {})
    shown = repr(load(secret, {})) + str(refused.value) + repr(Lattice(**secret, set_default=False))

    assert CANARY not in shown
    assert all(f.name in repr(Settings()) for f in fields(Settings))


def test_an_app_opens_nothing_until_it_is_used(tmp_path: Path) -> None:
    lattice = Lattice(f"sqlite:///{tmp_path / 'none.db'}", "amqp://nobody:x@127.0.0.1:1", set_default=False)

    @lattice.task(queue="q")
    def idle() -> None: ...

    assert not (tmp_path / "none.db").exists()
    lattice.close()


@pytest.mark.parametrize("path", ["", ":memory:"])
def test_an_embedded_store_needs_a_file(path: str) -> None:
    with pytest.raises((SettingsError, StoreError), match="names no file"):
        Lattice(f"sqlite:///{path}", set_default=False).migrate()
