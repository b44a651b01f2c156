"""Connect to Temporal, using the profiles and `TEMPORAL_*` variables that `temporalio.envconfig` reads."""

import atexit
import os
import re
import time
from contextlib import suppress
from pathlib import Path

from temporalio.client import Client
from temporalio.converter import DataConverter
from temporalio.envconfig import ClientConfig, ClientConnectConfig
from temporalio.service import RPCError, RPCStatusCode

from waystation.configuration import describe_source
from waystation.core.errors import InvalidConfiguration
from waystation.project_file import HERE, Project, current_project, list_temporal_variables, load_project
from waystation.storage import OFFLOAD_OVER, Blobs, offloading

DEFAULT_ADDRESS = "localhost:7233"
DEFAULT_NAMESPACE = "default"
_ADDRESS = re.compile(r"(\[[^\s\[\]/]+\]|[^\s:\[\]/]+):(?P<port>[0-9]{1,5})/?")

# A thread of Temporal's client may still be delivering the last result when the interpreter exits, which aborts the
# process (sdk-python issue 300). This hit 1 in 20 short programs, but none of 300 that paused for 20 ms.
EXIT_PAUSE_S = 0.1


def connection_settings(
    *,
    address: str | None = None,
    namespace: str | None = None,
    profile: str | None = None,
    project: Project | None = None,
) -> ClientConnectConfig:
    """Return the connection settings. Arguments override the environment, which overrides the project file.

    An address in the project file replaces the default profile of Temporal's client configuration.

    Raises:
        InvalidConfiguration: The address, or a setting in the environment, the profile or the project file, is invalid.
    """
    variables = list_temporal_variables(address, profile, project)
    try:
        config = ClientConfig.load_client_connect_config(
            profile=profile,
            disable_file="TEMPORAL_ADDRESS" in variables and "TEMPORAL_PROFILE" not in variables,
            override_env_vars={**variables, **os.environ} if variables else None,
        )
        host = address if address is not None else config.get("target_host") or DEFAULT_ADDRESS
        config["target_host"] = host
        config["namespace"] = namespace or config.get("namespace") or DEFAULT_NAMESPACE
    except (RuntimeError, ValueError, OSError) as error:  # ConfigError is a RuntimeError
        # Drop the lines that quote an invalid file: they may contain secrets.
        lines = "; ".join(line for line in str(error).splitlines() if line and "|" not in line)
        # An OSError quotes a file name, which may be a key instead.
        text = f"{describe_source(str(error.filename))}: {error.strerror}" if isinstance(error, OSError) else lines
        raise InvalidConfiguration(
            "The configuration of Temporal clients", "", f"{text}. Fix TEMPORAL_*, the profile or its TOML file."
        ) from None
    parts = _ADDRESS.fullmatch(host)
    if parts is None or not 0 < int(parts["port"]) < 65_536:
        variable = "TEMPORAL_ADDRESS" if os.environ.get("TEMPORAL_ADDRESS") else "the profile"
        source = "" if address is not None else f" in {variable}"
        if address is None and (chosen := project or current_project()) and host == variables.get("TEMPORAL_ADDRESS"):
            source = f" {chosen.describe('server.address')}"
        raise InvalidConfiguration(
            "The address of Temporal",
            "",
            f"{host!r}{source} is not a valid HOST:PORT, such as {DEFAULT_ADDRESS} or [::1]:7233.",
        )
    return config


def is_address_configured() -> bool:
    """Return whether the environment or the profile specifies the address of a Temporal server."""
    with suppress(RuntimeError, ValueError, OSError):
        return bool(ClientConfig.load_client_connect_config().get("target_host"))
    return True  # the settings are invalid, which `connect` reports


def connection_problem(error: Exception) -> str:
    """Explain in plain words why a connection failed, without the names of Rust types."""
    text = str(error) or type(error).__name__
    if "InvalidContentType" in text:
        return "the server does not speak TLS, which an API key or TEMPORAL_TLS* requires"
    if "error after connection" in text and "transport::Error" in text:
        return (
            "no Temporal server listens on the address (it may be the Web UI's), or the server requires TLS or a "
            "client certificate"
        )
    if "InvalidCertificate" in text:
        return "the server's certificate is not trusted or is for another name; see TEMPORAL_TLS_SERVER_CA_CERT_PATH"
    for marker in ('message: "', 'error: "'):
        if marker in text:
            return text.rsplit(marker, 1)[1].split('"', 1)[0]
    return text.removeprefix("Failed client connect: ")


def are_credentials_refused(error: Exception) -> bool:
    """Return whether a connection failed because of the API key or the client certificate."""
    return any(code in str(error) for code in ("code: Unauthenticated", "code: PermissionDenied"))


def describe_rpc(error: RPCError) -> str:
    """Return the message of a request that failed, or its usual cause if the message does not name it."""
    if "shard status unknown" in error.message:
        return "the server cannot write to its database. Its disk may be full."
    return error.message


def is_unreachable(error: RPCError) -> bool:
    """Return whether a request failed because the server does not respond at the moment."""
    if error.status is RPCStatusCode.UNKNOWN:  # the server went away during the request
        return "transport error" in error.message
    return error.status in (RPCStatusCode.UNAVAILABLE, RPCStatusCode.DEADLINE_EXCEEDED, RPCStatusCode.CANCELLED)


def data_converter(
    *,
    store: str | Path | None = None,
    offload_over: int = OFFLOAD_OVER,
    project: str | Path | None = HERE,
) -> DataConverter:
    """Return a data converter for your own Temporal clients and workers beside Waystation's.

    It encrypts and decrypts with the keys that the environment or the project file names, and stores payloads of at
    least `offload_over` bytes in `store` (see `Blobs`). For `project`, see `AgentClient.connect`.

    Raises:
        InvalidConfiguration: The project file or the encryption keys cannot be read.
    """
    return offloading(Blobs(store, project=load_project(project)), over=offload_over)


async def connect(
    *,
    address: str | None = None,
    namespace: str | None = None,
    profile: str | None = None,
    store: str | Path | None = None,
    offload_over: int = OFFLOAD_OVER,
    short_forms: bool = False,
    encrypted: bool = True,
    project: Project | None = None,
) -> Client:
    """Return a connected Temporal client. Arguments override the environment, which overrides the project file.

    `store` holds payloads of at least `offload_over` bytes; pass the store that the workers use (see `Blobs`). Programs
    that only display histories can set `short_forms` to read a shortened form of payloads missing from the store.
    Without `encrypted`, the encryption keys are not read: what is encrypted is unreadable, and nothing is encrypted.

    Raises:
        RuntimeError: No server responds at the address; see `connection_problem`.
        InvalidConfiguration: The address, or a setting in the environment or the profile, is invalid, or the encryption
            keys cannot be read.
    """
    atexit.unregister(_let_threads_finish)  # registered once
    atexit.register(_let_threads_finish)
    blobs = Blobs(store, project=project)
    converter = offloading(blobs, over=offload_over, short_forms=short_forms, encrypted=encrypted)
    config = connection_settings(address=address, namespace=namespace, profile=profile, project=project)
    try:
        return await Client.connect(**config, data_converter=converter)
    except RuntimeError as error:
        if project and (origins := project.explain(config.get("target_host", ""))):
            error.add_note(f"The server could not be reached{origins}.")
        raise


def _let_threads_finish() -> None:
    time.sleep(EXIT_PAUSE_S)
