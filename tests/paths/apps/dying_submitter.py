"""Submit one task and be killed after the commit, before anybody is told: `python -m … NAME`."""

import os
import signal
import sys
from pathlib import Path

from lattice_tasks import Lattice
from tests.history import History
from tests.witness import Witnessed

history = History(Path(os.environ["LIVES_HISTORY"]))
lattice = Lattice(set_default=False)
store = Witnessed(lattice.settings.store_url)


def killed(_queue_ids: object) -> None:
    if not any(row.name == sys.argv[1] for row in store.rows()):
        return  # a wake-up that goes ahead of the commit
    history.note("fault", kind="kill -9 before the wake-up", victim=os.getpid())
    os.kill(os.getpid(), signal.SIGKILL)


lattice.broker._parts.notifier.notify = killed
history.submitting(sys.argv[1], lambda: lattice.submit("lives", "work", (sys.argv[1],)))
