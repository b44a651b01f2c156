"""Run `waystation worker` as `python -m waystation.worker`."""

import sys

from waystation.worker.loading import load_worker

with load_worker():
    from waystation.worker.main import main

if __name__ == "__main__":
    sys.exit(main(program="waystation worker"))
