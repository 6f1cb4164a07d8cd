"""`python -m lattice_tasks`: the command line, or one worker process of it.

A worker process takes a way of its own, so that it never loads what only the command line needs.
"""

import sys

if sys.argv[1:2] == ["worker-child"]:
    from lattice_tasks.broker.worker_child import main

    arguments = sys.argv[2:]
else:
    from lattice_tasks.admin import main

    arguments = sys.argv[1:]

if __name__ == "__main__":
    sys.exit(main(arguments))
