"""No password reaches a log, a screen or an error."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice_tasks.masking import hidden, is_secret, masked
from lattice_tasks.settings import Settings

CANARY = "s3cr3t-CANARY"
PASSWORDS = st.text(st.characters(codec="utf-8", exclude_categories=("Z", "C")), min_size=1, max_size=12)


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://me:{CANARY}@host/db",
        f"postgresql://me:{CANARY}@host:5432/db?sslmode=require",
        f"postgresql://:{CANARY}@host/db",
        f"postgresql://me@host/db?password={CANARY}&x=1",
        f"postgresql://me@host/db?sslpassword={CANARY}",
        f"host=h user=u password={CANARY} dbname=d",
        f"host=h password='{CANARY} {CANARY}' dbname=d",
        f"amqp://a:{CANARY}@one/;amqps://b:{CANARY}@two/%2f",
        f"connection to amqp://a:{CANARY}@one:5672 failed",
        f"postgresql://me:p@{CANARY}@host/db",
        f"postgresql://me:p/{CANARY}@host/db",
        f"postgresql://me:p;{CANARY}@host/db",
    ],
)
def test_a_password_is_hidden_wherever_it_stands(url: str) -> None:
    assert CANARY not in masked(url)
    assert "***" in masked(url)


def test_what_helps_a_reader_stays() -> None:
    text = f"amqp://a:{CANARY}@one:5672/x;amqp://b:{CANARY}@two/y"

    assert masked(text) == "amqp://a:***@one:5672/x;amqp://b:***@two/y"
    assert masked("sqlite:///lattice.db") == "sqlite:///lattice.db"
    assert masked("postgresql://me@host/db") == "postgresql://me@host/db"


@given(PASSWORDS, st.sampled_from(["postgresql://u:{}@h/d", "amqp://u:{}@h", "x amqp://u:{}@h y"]))
def test_any_password_is_replaced_whole(password: str, form: str) -> None:
    if "://" in password:  # no URL may hold it unquoted, and no reader could tell where it ends
        return

    assert masked(form.format(password)) == form.format("***")


def test_masking_twice_changes_nothing() -> None:
    once = masked(f"postgresql://me:{CANARY}@host/db?password={CANARY}")

    assert masked(once) == once


@pytest.mark.parametrize(
    "name", ["password", "PASSWORD", "api_key", "apiKey", "APIKey", "x-api-key", "key2", "authToken", "apikey"]
)
def test_a_name_that_holds_the_word_of_a_secret_is_one(name: str) -> None:
    assert is_secret(name, Settings().redact)


@pytest.mark.parametrize("name", ["monkey", "keyboard", "author", "tokens", "", "_", "ключ", "secretary"])
def test_a_name_that_only_sounds_like_a_secret_is_none(name: str) -> None:
    assert not is_secret(name, Settings().redact)


def test_what_stands_under_a_secret_name_is_hidden_at_every_depth_and_nothing_else() -> None:
    call = {"kwargs": {"db": [{"password": CANARY, "port": 1}], "token": {"a": [CANARY]}, "note": "password"}}

    assert hidden(call, Settings().redact) == {
        "kwargs": {"db": [{"password": "***", "port": 1}], "token": "***", "note": "password"}
    }
    assert hidden(call, []) == call
