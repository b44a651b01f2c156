"""The processes in which the deployment gate replays histories."""

import subprocess
import sys
from contextlib import suppress

import psutil
import pytest

CHILD = "import json, os, time; print(json.dumps({'problems': [str(os.getpid())]}), flush=True); time.sleep(600)"
PARENT = """
import asyncio, os, signal, sys
from waystation.replay.deployment_gate import Replica
print(*asyncio.run(Replica([sys.executable, "-c", sys.argv[1]], 60.0).start()), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems cannot bind a process to another")
def test_a_replay_that_hangs_ends_with_a_gate_that_is_killed() -> None:
    """A hanging replay ends with its gate, although it does not read its input and so misses the end of the gate."""
    gate = subprocess.run([sys.executable, "-c", PARENT, CHILD], capture_output=True, text=True)
    assert gate.returncode == -9
    with suppress(psutil.NoSuchProcess):
        psutil.Process(int(gate.stdout)).wait(timeout=10)
