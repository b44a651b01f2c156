"""A calendar with a login, for this example: it has one appointment and accepts every login.

python examples/calendar_login/provider.py [PORT]
"""

import contextlib
import sys
import threading

from waystation.testing.fake_oauth import FakeOAuth

PORT = 8199


def main(port: int) -> None:
    """Serve until interrupted."""
    with FakeOAuth(client_id="waystation-example", client_secret="known-to-everyone", port=port) as provider:
        print(f"The calendar is at {provider.url}; end it with Ctrl-C.", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            threading.Event().wait()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else PORT)
