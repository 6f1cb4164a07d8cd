"""The table of behaviours: which test proves which numbered sentence. `python -m tests.behaviours` rewrites its page.

A test proves what its docstring names; nothing else counts, and the tests are read, not run:

    Q-12  D-40  L-21  T-01  A-01  B-06     sentences of the specification, and its decisions
    spec 2.10 order                        one of its bullets
    C31                                    a case from the field
    I8                                     an invariant of reliability

`Q-30..Q-36` names each of them. Whoever writes a test for something new adds it to `REQUIRED`, so that it stays.
"""

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

TESTS = Path(__file__).resolve().parent
PAGE = TESTS.parent / "docs" / "behaviours.md"

_ID = re.compile(
    r"\b(?P<letter>[QDLTAB])-(?P<first>\d{2,3})(?:\.\.(?P=letter)-(?P<last>\d{2,3}))?\b"
    r"|\b(?P<kind>C(?=\d\d)|I)(?P<number>\d{1,2})\b(?:\.\.(?P=kind)(?P<until>\d{1,2})\b)?"
    r"|\bspec (?P<section>\d\.\d{1,2})(?P<bullet>(?: [\w-]+){0,4})"
)
_ORDER = "QDLTABCI"

#: Two sentences and four write counts that a decision has replaced: nobody activates a queue, the head is written with
#: the entry, one head row orders it, and where it is of use is documentation.
NOT_OURS = {"Q-27", "Q-38", "Q-39", "Q-42", "Q-63", "Q-65"}
_QUEUES = {
    f"Q-{number:02}"
    for first, last in ((1, 8), (10, 14), (20, 28), (30, 49), (50, 56), (60, 65))
    for number in range(first, last + 1)
}
#: About dead letters, the middleware, Postgres and FIFO queues.
_CASES = {
    "C01", "C04", "C06", "C09", "C10", "C13", "C15", "C16", "C17", "C21", "C22", "C23", "C24", "C25", "C26", "C27",
    "C28", "C29", "C31", "C33", "C34", "C35", "C36", "C37", "C38", "C39", "C40", "C41", "C42", "C43", "C44", "C50",
    "C52", "C57",
}  # fmt: skip
#: What must have a test.
REQUIRED = (_QUEUES - NOT_OURS) | _CASES


def proofs() -> dict[str, list[str]]:
    """id → the tests that name it, as pytest calls them, in their order."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted(TESTS.rglob("test_*.py")):
        for name, text in _tests(ast.parse(path.read_text("utf-8"))):
            for one in dict.fromkeys(named(text)):
                found[one].append(f"{path.relative_to(TESTS).as_posix()}::{name}")
    return {one: found[one] for one in sorted(found, key=_place)}


def named(text: str) -> Iterator[str]:
    """The ids in a docstring, ranges written out."""
    for match in _ID.finditer(text):
        if match["section"]:
            yield f"spec {match['section']}{match['bullet']}"
        elif match["letter"]:
            yield from _range(f"{match['letter']}-", match["first"], match["last"])
        else:
            yield from _range(match["kind"], match["number"], match["until"])


def missing(found: Iterable[str]) -> list[str]:
    """What is required and has no test."""
    return sorted(REQUIRED - set(found), key=_place)


def page() -> str:
    """The page as it ought to be."""
    rows = proofs()
    lines = [
        "# What is proved by which test",
        "",
        "Written by `python -m tests.behaviours` from the docstrings of the tests; a test fails when it is out of date.",
        "Q, D, L, T: sentences of the specification; A, B: its decisions; C: cases from the field; I: invariants of",
        f"reliability. {len(rows)} of them are named by a test.",
        "",
        "| | tests |",
        "|---|---|",
    ]
    lines += [f"| {one} | {'<br>'.join(f'`{test}`' for test in tests)} |" for one, tests in rows.items()]
    return "\n".join(lines) + "\n"


def _tests(module: ast.Module) -> Iterator[tuple[str, str]]:
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            yield node.name, ast.get_docstring(node) or ""


def _range(prefix: str, first: str, last: str | None) -> Iterator[str]:
    yield from (f"{prefix}{number:0{len(first)}}" for number in range(int(first), int(last or first) + 1))


def _place(one: str) -> tuple[int, list[int], str]:
    """Letters in the order of the page, then by number."""
    return _ORDER.find(one[0]) % 99, [int(digits) for digits in re.findall(r"\d+", one)], one


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
    print("\n".join(f"no test names {one}" for one in missing(proofs())), file=sys.stderr)
