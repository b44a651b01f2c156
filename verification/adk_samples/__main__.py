"""Count the agents of a folder that run on Waystation as they run on google-adk.

A sample is a package with an `agent.py` that defines `root_agent` or `app`. It loads if `discover`, with which workers
find agents, accepts it. It runs if one scripted conversation that calls each of its tools, and transfers to each of its
agents, gives the same events on google-adk and through the adapter.

Runs in the environment that has google-adk: `make adk-samples DIR=…`. Samples may require further packages, which can
be installed into that environment, and servers, which must be running.
"""

import asyncio
import json
import logging
import multiprocessing
import re
import sys
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import structlog

from verification.adk_samples import sides
from verification.adk_samples.conversation import Json
from verification.differential.deviations import DEVIATIONS
from verification.differential.record import difference
from waystation.embedded import EmbeddedServer

START_LIMIT_S = 30.0
CHANGES = ("no-placeholder", "one-rule-for-batches", "each-answer-is-an-event", "generators-are-no-nodes")
"""Deviations that turn google-adk's record into Waystation's expected one."""


def find_samples(folder: Path) -> Iterator[Path]:
    """Yield the packages that expose an agent. Packages below a sample belong to it."""
    file = folder / "agent.py"
    if file.is_file() and re.search(rb"^(root_agent|app)\b", file.read_bytes(), re.MULTILINE):
        yield folder
        return
    for below in sorted(folder.iterdir()) if folder.is_dir() else ():
        if not below.name.startswith("."):
            yield from find_samples(below)


def ask(side: Callable[[Path], Awaitable[Json]], folder: Path, address: str) -> Json:
    """Run one side of a sample in a separate process, and return the result that `sides.answer` sends."""
    context = multiprocessing.get_context("forkserver")
    receive, send = context.Pipe(duplex=False)
    process = context.Process(target=sides.answer, args=(side, folder, address, send), daemon=True)
    process.start()
    send.close()
    try:
        if not receive.poll(START_LIMIT_S + sides.LIMIT_S):
            return {"failed": f"no end within {sides.LIMIT_S:.0f} s"}
        answer: Json = receive.recv()
        return answer
    except EOFError:
        return {"failed": "the process ended early"}
    finally:
        process.kill()
        process.join()


def judge(theirs: Json, ours: Json) -> tuple[bool, str | None]:
    """Return whether a sample loads, and the reason if it does not run."""
    if "not_imported" in theirs:
        return False, f"cannot be imported with google-adk: {theirs['not_imported']}"
    if "refused" in ours:
        return False, str(ours["refused"])
    for where, answer in (("google-adk", theirs), ("Waystation", ours)):
        if reason := answer.get("failed") or answer.get("raised"):
            return True, f"the conversation fails on {where}: {reason}"
    if theirs["left"]:
        return True, f"the conversation does not reach {', '.join(theirs['left'])}"
    expected = json.loads(json.dumps(theirs))
    for name in CHANGES:
        expected = DEVIATIONS[name].change(expected, None)
    differences = difference(expected, ours)
    return True, f"differs from google-adk: {differences[0]}" if differences else None


async def main(folder: Path) -> int:
    """Print the counts, and the reason for each sample that does not run. Return the exit code."""
    samples = list(find_samples(folder))
    if not samples:
        sys.stderr.write(f"{folder} contains no package with an `agent.py` that defines `root_agent` or `app`.\n")
        return 2
    loaded, reasons = 0, {}
    loop = asyncio.get_running_loop()
    async with EmbeddedServer() as server:
        with ThreadPoolExecutor(2) as pool:
            for nth, sample in enumerate(samples, 1):
                name = str(sample.relative_to(folder)) if sample != folder else folder.name
                both = (sides.run_on_adk, sides.run_on_waystation)
                runs = [loop.run_in_executor(pool, ask, side, sample.resolve(), server.address) for side in both]
                loads, reason = judge(*await asyncio.gather(*runs))
                loaded += loads
                if reason is not None:
                    reasons[name] = reason
                sys.stderr.write(f"{nth}/{len(samples)} {name}: {reason or 'runs'}\n")
    sys.stdout.write(f"{len(samples)} samples: {loaded} load, {len(samples) - len(reasons)} run\n")
    for name, reason in reasons.items():
        sys.stdout.write(f"  {name}: {reason}\n")
    return 0


if __name__ == "__main__":
    if len(sys.argv) != 2 or not sys.argv[1]:
        sys.exit("Name the folder: make adk-samples DIR=…")
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    multiprocessing.set_forkserver_preload([sides.__name__])
    sys.exit(asyncio.run(main(Path(sys.argv[1]).resolve())))
