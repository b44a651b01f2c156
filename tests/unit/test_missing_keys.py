"""A worker without keys does not serve protected tools on a shared server."""

import pytest
from temporalio.client import Client
from temporalio.worker import WorkerConfig

from waystation.agents import Agent
from waystation.core.approval import ApprovalPolicy
from waystation.core.errors import InvalidConfiguration
from waystation.tools import FunctionTool
from waystation.worker import WaystationPlugin
from waystation.worker_keys import WorkerKeys


def pay(amount: int) -> None:
    """Pay."""


async def configure(address: str, policy: ApprovalPolicy, keys: WorkerKeys | None = None) -> WorkerConfig:
    """Configure a worker of the agent for a server at this address, without connecting."""
    agent = Agent(name="payer", model="gemini-3.5-flash", tools=[FunctionTool(pay, approval=policy)])
    plugin = WaystationPlugin([agent], keys=keys)
    client = await Client.connect(address, lazy=True, plugins=[plugin])
    return plugin.configure_worker({"client": client, "task_queue": "waystation"})


async def test_a_server_elsewhere_needs_keys() -> None:
    """The error names the policy and how to create keys."""
    with pytest.raises(InvalidConfiguration, match=r"tool 'pay' of agent 'payer'.*waystation identity keys FILE"):
        await configure("temporal.example.com:7233", ApprovalPolicy(approvers=("role:finance",)))


@pytest.mark.parametrize("address", ["localhost:7233", "127.0.0.1:7233", "[::1]:7233"])
async def test_a_server_on_this_machine_needs_no_keys(address: str) -> None:
    """A server on this machine needs no keys, so that development needs no setup."""
    assert (await configure(address, ApprovalPolicy(approvers=("role:finance",))))["activities"]


async def test_keys_or_unprotected_tools_are_enough() -> None:
    """A worker starts with keys, or without policies that need verified approvers."""
    verified = ApprovalPolicy(approvers=("role:finance",))
    assert (await configure("temporal.example.com:7233", verified, WorkerKeys.generate()))["activities"]
    assert (await configure("temporal.example.com:7233", ApprovalPolicy(comment=True)))["activities"]
