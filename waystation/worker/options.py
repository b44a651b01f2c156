"""The command line of a worker process. Not typer: the process should poll as soon as it can."""

import argparse
import sys
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from temporalio.common import VersioningBehavior, WorkerDeploymentVersion
from temporalio.worker import WorkerDeploymentConfig

from waystation.activities.model_choice import DEMO
from waystation.core.settings import Settings, Stores
from waystation.core.wire import TASK_QUEUE

_DEFAULTS = Settings()


def parse_options(arguments: Sequence[str] | None, program: str) -> argparse.Namespace:
    """Parse the command line; end the process with exit code 2 where it is wrong."""
    grammar = _parser(program)
    options = grammar.parse_args(arguments)
    if not options.agents and options.only != "workflows":  # workflows need no agents
        grammar.error("--agents is required, except with --only workflows")
    if options.embedded and options.address:
        grammar.error(
            "--embedded starts a server of its own, at a port that it says; leave --address out, or --embedded"
        )
    return options


def settings_of(options: argparse.Namespace) -> Settings:
    """Return the settings that the command line says."""
    stores = Stores(
        payloads=options.store,
        offload_over=options.offload_over,
        artifacts=options.artifacts,
        memory=options.memory,
        credentials=options.credentials,
    )
    return Settings(
        stores=stores, drain=options.drain, allow_overrides=bool(options.allow_overrides or options.embedded)
    )


def _parser(program: str) -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(prog=program, description="Serve agents from a Temporal task queue.")
    result.add_argument(
        "command", nargs="?", choices=["run", "check"], default="run", help="check: only look for mistakes"
    )
    result.add_argument("--agents", nargs="+", type=Path, default=(), metavar="DIR", help="folders with agent packages")
    result.add_argument(
        "--only", choices=["workflows", "activities"], help="serve these; a process of another kind serves the others"
    )
    result.add_argument(
        "--drain",
        type=_seconds,
        default=_DEFAULTS.drain,
        metavar="SECONDS",
        help=f"how long running tools may go on after SIGTERM; default: {_DEFAULTS.drain.total_seconds():g}",
    )
    result.add_argument("--task-queue", default=TASK_QUEUE)
    result.add_argument("--address", help="HOST:PORT of Temporal; default: the TEMPORAL_* variables and profile")
    result.add_argument("--namespace", help="Temporal's namespace; default: likewise")
    result.add_argument("--profile", help="a profile of Temporal's client configuration; default: TEMPORAL_PROFILE")
    result.add_argument("--embedded", action="store_true", help="start a Temporal server too")
    result.add_argument("--db", type=Path, help="with --embedded: keep the server's data in this file")
    result.add_argument("--model", choices=[DEMO], help="demo: use the packages' offline stand-ins")
    result.add_argument(
        "--artifacts",
        default=str(_DEFAULTS.stores.artifacts),
        metavar="URL",
        help="keep artifacts in this folder or object store, such as s3://bucket/prefix; default: %(default)s",
    )
    result.add_argument(
        "--memory",
        type=Path,
        default=Path(_DEFAULTS.stores.memory),
        metavar="FILE",
        help="keep memories here; default: %(default)s",
    )
    result.add_argument(
        "--credentials",
        default=str(_DEFAULTS.stores.credentials),
        metavar="STORE",
        help="keep users' credentials here: an encrypted file, keyring:NAME, or python:MODULE:NAME for a store of your "
        "own; default: %(default)s",
    )
    result.add_argument("--store", metavar="URL", help="folder or object store of large payloads; clients need it too")
    over = "size of a payload from which it goes there; default: %(default)s"
    result.add_argument("--offload-over", type=int, default=_DEFAULTS.stores.offload_over, metavar="BYTES", help=over)
    result.add_argument(
        "--identity",
        type=Path,
        metavar="FILE",
        help="who may say who answers, and the key that opens what they say; default: the variable WAYSTATION_IDENTITY",
    )
    result.add_argument(
        "--channels",
        type=Path,
        metavar="FILE",
        help="how people are told that something waits; default: the variable WAYSTATION_CHANNELS",
    )
    result.add_argument(
        "--allow-overrides",
        action="store_true",
        help="take instructions and models that forks bring; for development, and with --embedded always",
    )
    result.add_argument(
        "--deployment-version",
        type=_deployment,
        metavar="NAME.BUILD",
        help="take part in Temporal's worker versioning as this build of a deployment; default: do not",
    )
    result.add_argument("--version", action=_Version, nargs=0, help="print the versions and exit")
    result.add_argument("--log-format", choices=["console", "json"], help="default: console in a terminal")
    return result


class _Version(argparse.Action):
    """As argparse's own, which would look the versions up at every start."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        """Print them and end."""
        from waystation.version import versions

        sys.stdout.write(f"{versions()}\n")
        parser.exit()


def _seconds(text: str) -> timedelta:
    """Read a duration of the command line."""
    try:
        result = timedelta(seconds=float(text))
    except (ValueError, OverflowError):
        result = timedelta(-1)
    if result < timedelta():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
    return result


def _deployment(text: str) -> WorkerDeploymentConfig:
    """Read which build of which deployment a worker is.

    What is open moves to the build that is current. Kept to the build that began it, a session, which never ends, would
    stay with that for good, and all invocations that it begins with it.
    """
    name, _, build = text.partition(".")
    if not name or not build:
        raise argparse.ArgumentTypeError(f"{text!r} is not a deployment's name, a dot and a build id")
    return WorkerDeploymentConfig(
        version=WorkerDeploymentVersion(name, build),
        use_worker_versioning=True,
        default_versioning_behavior=VersioningBehavior.AUTO_UPGRADE,
    )
