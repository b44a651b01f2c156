"""Connect to Temporal as the environment says: profiles and `TEMPORAL_*` variables of `temporalio.envconfig`."""

import atexit
import time
from pathlib import Path

from temporalio.client import Client
from temporalio.envconfig import ClientConfig, ClientConnectConfig

from waystation.storage import Blobs
from waystation.storage.driver import OFFLOAD_OVER, offloading

DEFAULT_ADDRESS = "localhost:7233"
DEFAULT_NAMESPACE = "default"

# A thread of Temporal's client may still be handing over the last result when the interpreter goes, which then aborts
# the process (sdk-python issue 300): one in ten short programs here, none of eighty with a pause of 1 ms.
EXIT_PAUSE_S = 0.02


def settings(
    *, address: str | None = None, namespace: str | None = None, profile: str | None = None
) -> ClientConnectConfig:
    """Return how to connect. What is given here wins over the environment."""
    config = ClientConfig.load_client_connect_config(profile=profile)
    config["target_host"] = address or config.get("target_host") or DEFAULT_ADDRESS
    config["namespace"] = namespace or config.get("namespace") or DEFAULT_NAMESPACE
    return config


async def connect(
    *,
    address: str | None = None,
    namespace: str | None = None,
    profile: str | None = None,
    store: str | Path | None = None,
    offload_over: int = OFFLOAD_OVER,
    short_forms: bool = False,
) -> Client:
    """Return a Temporal client. What is given here wins over the environment.

    `store` is where payloads of at least `offload_over` bytes are kept, see `Blobs`: the same as the workers'. With
    `short_forms` those that it does not hold are read shortened; for programs that only show histories.

    Raises:
        RuntimeError: No server answers there.
    """
    atexit.unregister(_let_threads_finish)  # once is enough
    atexit.register(_let_threads_finish)
    converter = offloading(Blobs(store), over=offload_over, short_forms=short_forms)
    return await Client.connect(
        **settings(address=address, namespace=namespace, profile=profile), data_converter=converter
    )


def _let_threads_finish() -> None:
    time.sleep(EXIT_PAUSE_S)
