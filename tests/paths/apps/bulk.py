"""An app whose task writes down each run, and fails as long as a file is there."""

import os
from pathlib import Path

from lattice_tasks import Lattice

lattice = Lattice()
_FOLDER = Path(os.environ["BULK_FOLDER"])


@lattice.task(queue="bulk", max_retries=0)
def run(number: int) -> None:
    with open(_FOLDER / "runs", "a") as runs:
        runs.write(f"{number}\n")
    if (_FOLDER / "broken").exists():
        raise ValueError(f"no luck with {number}")
