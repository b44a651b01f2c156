"""Which server, namespace and task queue a command is for, and how to say so in another command."""

import asyncio
import json
import shlex
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from waystation.cli.exit_codes import Exit, Problem
from waystation.client import AgentClient, connect, connection_problem, connection_settings
from waystation.core import (
    ANSWER_SIGNAL,
    DEFAULT_APP,
    DEFAULT_USER,
    TASK_QUEUE,
    InvalidConfiguration,
    JsonObject,
    PendingCall,
)
from waystation.storage import Blobs

CONNECT_LIMIT_S = 10.0


@dataclass(frozen=True, slots=True)
class Target:
    """What the global options say; None leaves it to the environment."""

    address: str | None = None
    namespace: str | None = None
    task_queue: str = TASK_QUEUE
    profile: str | None = None
    program: str = "waystation"
    """How this program is started, for the commands that it shows."""
    temporal: str = "temporal"
    """How Temporal's own program is started."""
    store: str | None = None
    """Where large payloads are kept."""

    async def connect(self, *, whole: bool = False) -> AgentClient:
        """Return a client; one that reads values `whole`, or fails, instead of shortened where the store lacks them.

        Raises:
            Problem: No server answers, or the configuration cannot be read.
        """
        where = self.where()
        try:
            async with asyncio.timeout(CONNECT_LIMIT_S):
                temporal = await connect(
                    address=self.address,
                    namespace=self.namespace,
                    profile=self.profile,
                    store=self.store,
                    short_forms=not whole,
                )
        except (RuntimeError, TimeoutError, ValueError) as error:
            late = isinstance(error, TimeoutError)
            why = f"no answer within {CONNECT_LIMIT_S:g} s" if late else connection_problem(error)
            raise Problem(
                Exit.NO_SERVER,
                f"No Temporal server answers at {where} ({why}). Start one with `waystation worker --embedded "
                "--agents DIR`, or say where it is: --address or TEMPORAL_ADDRESS.",
            ) from None
        return AgentClient(temporal, task_queue=self.task_queue, blobs=Blobs(self.store))

    def where(self) -> str:
        """Return the server and the namespace in a few words.

        Raises:
            Problem: The configuration cannot be read.
        """
        try:
            config = connection_settings(address=self.address, namespace=self.namespace, profile=self.profile)
        except InvalidConfiguration as error:
            raise Problem(Exit.USAGE, str(error)) from None
        return f"{config.get('target_host')}, namespace {config.get('namespace')}"

    def follow_command(self, invocation: str) -> str:
        """Return the command of this program that follows an invocation."""
        return f"{self._program()} events {quoted(invocation)} --follow"

    def chat_command(self, agent: str, session: str, user: str, app: str) -> str:
        """Return the command of this program that takes up a conversation."""
        parts = [self._program(), "chat", quoted(agent), "--session", quoted(session)]
        parts += ["--user", quoted(user)] if user != DEFAULT_USER else []
        parts += ["--app", quoted(app)] if app != DEFAULT_APP else []
        return " ".join(parts)

    def answer_command(self, action: str, id: str, call: str = "") -> list[str]:
        """Return the command of this program that answers a call of an invocation, or an approval id, in parts."""
        return [self._program(), f"{action} {quoted(id)} {call}".rstrip()]

    def signal_command(self, call: PendingCall) -> list[str]:
        """Return the command of the `temporal` CLI that approves a call, in parts, with all that its policy wants."""
        answer: JsonObject = {"function_call_id": call.function_call_id, "action": "approve"}
        if call.policy and call.policy.digest:
            answer["digest"] = call.digest
        if call.policy and call.policy.comment:
            answer["comment"] = "WHY"
        return [
            " ".join([f"{self.temporal} workflow signal", *self._options()]),
            f"--workflow-id {quoted(call.invocation_id)} --name {ANSWER_SIGNAL}",
            f"--input {quoted(json.dumps(answer))}",
        ]

    def _program(self) -> str:
        store = [f"--store {quoted(self.store)}"] if self.store else []
        return " ".join([self.program, *self._options(), *store])

    def _options(self) -> list[str]:
        options = {"--address": self.address, "--namespace": self.namespace, "--profile": self.profile}
        return [f"{name} {quoted(value)}" for name, value in options.items() if value]


def quoted(word: str) -> str:
    """Return a word as a shell takes it, with what could steer a terminal escaped as bash and zsh read it."""
    if word.isprintable():
        return shlex.quote(word)
    special = {"\\": "\\\\", "'": "\\'"}
    escaped = [special.get(char, char) if char.isprintable() else f"\\U{ord(char):08x}" for char in word]
    return f"$'{''.join(escaped)}'"


def program_name() -> str:
    """Return how this program can be started."""
    if shutil.which("waystation"):
        return "waystation"
    installed = Path(sys.executable).with_name("waystation")
    return shown(installed) if installed.exists() else f"{shown(Path(sys.executable))} -m waystation.cli"


def temporal_name() -> str:
    """Return how Temporal's own program can be started."""
    installed = Path(sys.executable).with_name("temporal")
    return shown(installed) if installed.exists() and not shutil.which("temporal") else "temporal"


def shown(path: Path) -> str:
    """Return a path as short as it can be written here."""
    here = Path.cwd()
    return quoted(str(path.relative_to(here) if path.is_relative_to(here) else path))
