"""The command line `lattice-tasks`: one file per noun, over pictures from `insights` and verbs of `app.Lattice`.

Only here are click and wcwidth loaded, and nothing outside imports this room: a worker process never pays for them.
"""

from lattice_tasks.admin.entry import main

__all__ = ["main"]
