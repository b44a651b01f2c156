"""`python -m waystation.worker` is `waystation worker`."""

import sys

from waystation.worker.main import main

if __name__ == "__main__":
    sys.exit(main(program="waystation worker"))
