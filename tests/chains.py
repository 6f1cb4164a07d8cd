"""A chain of records in the audit, and what verifying it finds."""

from lattice_tasks import Lattice

RECORDS = 12


def chain(lattice: Lattice) -> Lattice:
    """The same lattice, with so many records."""
    for number in range(RECORDS):
        with lattice.audit.acting("test act", f"target {number}", who="ann", reason="because") as act:
            act.before, act.after = {"number": number}, {"number": number + 1}
    return lattice


def fault(lattice: Lattice) -> tuple[int, str] | None:
    """(number, kind) of the first wrong record."""
    found = lattice.audit.verify().fault
    return None if found is None else (found.n, found.kind)
