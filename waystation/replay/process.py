"""A process that replays histories, so that neither a hang nor a crash can take more than one of them along.

python -m waystation.replay.process [DIR …]    the folders are those of the agents to look at, if any

Histories come in by standard input and verdicts leave by standard output. It has no connection to any server.
"""

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from temporalio.api.history.v1 import History
from temporalio.client import WorkflowHistory
from temporalio.converter import DataConverter
from temporalio.runtime import LoggingConfig, Runtime, TelemetryConfig, TelemetryFilter

from waystation.core.errors import ForeignHistory
from waystation.core.payload import JsonObject
from waystation.replay.gate import ANSWER, REQUEST
from waystation.replay.replayer import Replays, find_divergence, replaying

if TYPE_CHECKING:
    from waystation.agents.registry import Registry

_ELSEWHERE = "ResultElsewhere"
"""The error of workflow code that does not find a result in the store; see `workflows.ports`."""


async def serve(requests: BinaryIO, answers: BinaryIO, agents: Sequence[Path]) -> None:
    """Replay what comes in until there is no more."""
    registry, problems = _registry(agents) if agents else (None, [])
    _say(answers, {"problems": problems})
    async with replaying(converter=DataConverter.default) as replays:
        while request := await asyncio.to_thread(_next, requests):
            _say(answers, await judged(request, replays, registry))


async def judged(history: WorkflowHistory, replays: Replays, registry: "Registry | None") -> JsonObject:
    """Return what is to be said of one history whose payloads are opened."""
    try:
        found = await find_divergence(history, replays)
        if found and found.failure == _ELSEWHERE:
            return {"verdict": "lacking", "problem": "A large value that it needs is not in the store."}
        if found:
            return {"verdict": "differs", "problem": str(found), "divergence": found.to_json()}
        if registry is not None:
            from waystation.replay.fitting import misfits  # here, because it loads what a worker loads

            if lacks := misfits(history, registry):
                problem = " ".join(each.problem for each in lacks)
                return {"verdict": "misfit", "problem": problem, "misfits": [each.to_json() for each in lacks]}
    except ForeignHistory as error:
        return {"verdict": "differs", "problem": str(error)}
    return {"verdict": "replays"}


def _registry(agents: Sequence[Path]) -> "tuple[Registry, list[str]]":
    from waystation.agents.registry import discover

    registry, problems = discover(agents)
    return registry, [str(problem) for problem in problems]


def _next(requests: BinaryIO) -> WorkflowHistory | None:
    head = requests.read(REQUEST.size)
    if len(head) < REQUEST.size:
        return None
    id_length, length = REQUEST.unpack(head)
    id = requests.read(id_length).decode()
    return WorkflowHistory(id, History.FromString(requests.read(length)).events)


def _say(answers: BinaryIO, said: JsonObject) -> None:
    data = json.dumps(said).encode()
    answers.write(ANSWER.pack(len(data)) + data)
    answers.flush()


def main() -> None:
    """Serve standard input and output; whatever else is printed goes nowhere."""
    with open(os.dup(1), "wb") as answers, open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        only_errors = LoggingConfig(filter=TelemetryFilter(core_level="ERROR", other_level="ERROR"))
        with contextlib.suppress(RuntimeError):
            Runtime.set_default(Runtime(telemetry=TelemetryConfig(logging=only_errors)))
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(serve(sys.stdin.buffer, answers, [Path(each) for each in sys.argv[1:]]))
    os._exit(0)  # threads of Temporal's core may abort the process otherwise


if __name__ == "__main__":
    main()
