"""Serve agents from a Temporal task queue. `python worker.py --agents DIR` is the same as `waystation worker`."""

import sys

from waystation.stop_signals import exit_until_handled

if __name__ == "__main__":
    exit_until_handled()  # before modules that take seconds to import

from waystation.worker.process import load_worker

with load_worker():
    from waystation.worker.main import main

if __name__ == "__main__":
    sys.exit(main())
