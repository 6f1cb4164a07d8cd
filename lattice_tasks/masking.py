"""Hiding secrets before anything shows or stores them: the passwords of URLs, and arguments by their names."""

import re
from collections.abc import Sequence
from typing import Any

__all__ = ["HIDDEN", "hidden", "is_secret", "masked"]

HIDDEN = "***"

# Up to the last @ before the next URL: a password that nobody quoted may hold @, / or ; itself.
_PASSWORD = re.compile(r"(?<=://)([^/@\s:]*):((?:(?!://)\S)*)@")
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")
_SECRET_OPTION = re.compile(r"((?:password|passfile|sslkey|sslpassword)=)(?:'[^']*'|[^&\s]+)", re.IGNORECASE)


def masked(url: str) -> str:
    """The URL, or a text with URLs in it, with every password replaced by `***`, fit for logs and screens."""
    return _SECRET_OPTION.sub(r"\1***", _PASSWORD.sub(r"\1:***@", url))


def is_secret(name: str, words: Sequence[str]) -> bool:
    """Whether a name looks like that of a secret: it holds one of these words, as `api_key`, `apiKey` and `KEY` hold `key`."""
    spelled = _spelled(name)
    return any(f"_{_spelled(word)}_" in f"_{spelled}_" for word in words)


def hidden(value: Any, words: Sequence[str]) -> Any:
    """A JSON value with everything that stands under the name of a secret replaced by `***`; a copy where it differs."""
    if isinstance(value, dict):
        return {name: HIDDEN if is_secret(name, words) else hidden(inner, words) for name, inner in value.items()}
    if isinstance(value, list):
        return [hidden(inner, words) for inner in value]
    return value


def _spelled(name: str) -> str:
    return "_".join(_WORD.findall(name)).lower()
