"""The app file of the census: one task that reads a Python source file and counts what is in it.

Workers run it with `lattice-tasks worker examples.census_tasks`; `examples/census.py` submits to it.
CENSUS_TOLERANT=1 is the repaired release: it also counts files that cannot be decoded or parsed.
"""

import ast
import io
import os
import re
import tokenize
import warnings
from pathlib import Path

from lattice_tasks import Lattice

QUEUE = "census"
TOLERANT = os.environ.get("CENSUS_TOLERANT") == "1"
STORE_URL = os.environ.get("CENSUS_STORE_URL", "sqlite:///census.db")

warnings.simplefilter("ignore")  # the files in the test folders hold doubtful escapes on purpose

lattice = Lattice(store_url=STORE_URL, broker_url="", namespace="census")


@lattice.task(queue=QUEUE, max_retries=2, min_backoff=200, max_backoff=800)
def count(path: str) -> dict[str, int]:
    """Functions, classes, tokens and lines of one file.

    A file that breaks the strict reader raises whatever the standard library raises: three attempts, then it is a
    dead letter. Nothing here knows which files are broken.
    """
    raw = Path(path).read_bytes()
    return counted_tolerantly(raw) if TOLERANT else counted_strictly(raw)


def counted_strictly(raw: bytes) -> dict[str, int]:
    """Decode as the file declares, tokenise, parse; raises for a file that Python itself would refuse."""
    encoding, _ = tokenize.detect_encoding(io.BytesIO(raw).readline)
    text = raw.decode(encoding)
    tokens = sum(1 for _ in tokenize.generate_tokens(io.StringIO(text).readline))
    kinds = [type(node) for node in ast.walk(ast.parse(text))]
    return {
        "functions": kinds.count(ast.FunctionDef) + kinds.count(ast.AsyncFunctionDef),
        "classes": kinds.count(ast.ClassDef),
        "tokens": tokens,
        "lines": len(text.splitlines()),
    }


def counted_tolerantly(raw: bytes) -> dict[str, int]:
    """As strictly as the file allows; else by the look of its lines."""
    try:
        return counted_strictly(raw)
    except (SyntaxError, ValueError, tokenize.TokenError, RecursionError, MemoryError):
        text = raw.decode("utf-8", errors="replace")
        return {
            "functions": len(re.findall(r"^\s*(?:async\s+)?def\s+\w", text, re.MULTILINE)),
            "classes": len(re.findall(r"^\s*class\s+\w", text, re.MULTILINE)),
            "tokens": len(text.split()),
            "lines": len(text.splitlines()),
        }
