"""`make demo`: an agent, a human approval, and a crash that changes nothing."""

import argparse
import sys
from collections.abc import Sequence

from waystation.cli import INTERRUPTED


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; return its exit code."""
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument("--model", choices=["demo"], help="use the offline stand-in even when there is an API key")
    parser.add_argument("--answer", choices=["approve", "reject"], help="do not ask in the terminal")
    options = parser.parse_args(arguments)
    try:
        # Here, because the imports take long enough to be interrupted.
        import asyncio

        from waystation.cli.story import tell

        return asyncio.run(tell(options))
    except KeyboardInterrupt:
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
