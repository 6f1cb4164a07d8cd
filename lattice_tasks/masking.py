"""Hiding the passwords of URLs before anything shows or stores them."""

import re

__all__ = ["masked"]

# Up to the last @ before the next URL: a password that nobody quoted may hold @, / or ; itself.
_PASSWORD = re.compile(r"(?<=://)([^/@\s:]*):((?:(?!://)\S)*)@")
_SECRET_OPTION = re.compile(r"((?:password|passfile|sslkey|sslpassword)=)(?:'[^']*'|[^&\s]+)", re.IGNORECASE)


def masked(url: str) -> str:
    """The URL, or a text with URLs in it, with every password replaced by `***`, fit for logs and screens."""
    return _SECRET_OPTION.sub(r"\1***", _PASSWORD.sub(r"\1:***@", url))
