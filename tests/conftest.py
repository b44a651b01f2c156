"""Fixtures of every tier that need no server."""

import contextlib
import functools
import gc
import logging
import os
import signal
import ssl
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, MutableMapping
from datetime import timedelta
from typing import Any, TypeAlias

import httpcore2
import hypothesis
import pytest
import structlog
from structlog.testing import capture_logs
from temporalio.worker import Worker
from temporalio.worker._workflow import _WorkflowWorker

from examples.calendar_login.provider import FakeOAuth
from tests.fakes.openid import FakeOpenId
from tests.tiers import drawn_examples, is_full
from waystation.core.contract import Settings
from waystation.testing import AgentEnvironment, FakeGemini
from waystation.worker import plugin, watchdog

Serve: TypeAlias = Callable[..., contextlib.AbstractAsyncContextManager[AgentEnvironment]]
SetZone: TypeAlias = Callable[[str], None]

# Workers run in the process of the tests, and some tests read standard output.
structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))

# A busy machine takes longer than 200 ms for some examples.
hypothesis.settings.register_profile("busy", deadline=None, max_examples=drawn_examples(100))
hypothesis.settings.load_profile("busy")

# Background jobs of a shell ignore Ctrl-C, and programs that tests start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Servers that are programs in Go. With a thread for each core, they take a sixth more CPU time, which tests share.
os.environ.setdefault("GOMAXPROCS", "1")
# They are small, so their garbage collector may wait until the heap has grown to five times its size. That saves a
# further fifth of their time, and takes 70 MB more for each.
os.environ.setdefault("GOGC", "400")

# Off until the tests are collected, because almost all objects that collecting creates stay.
gc.disable()


def pytest_collection_finish() -> None:
    """Keep permanent objects away from the garbage collector, because scanning all of them takes long enough to seem a
    deadlock.
    """
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """List the tests that `make test-full` skipped on this machine."""
    reports = terminalreporter.getreports("skipped") if is_full() else []
    if reports:
        terminalreporter.section(f"NOT TESTED: {len(reports)} tests were skipped", red=True)
    reasons = Counter(report.longrepr[2].removeprefix("Skipped: ") for report in reports)
    for reason, count in sorted(reasons.items()):
        terminalreporter.write_line(f"{count} x {reason}")


@pytest.fixture(scope="session", autouse=True)
def busy_machine() -> Iterator[None]:
    """Give event loops and workflow tasks more time before they count as blocked, because a machine may pause for
    seconds.

    Replays and workers without the plugin have no option except no limit, and then workflows run in the thread of the
    test. The plugin sets its own limit, which stays where a test chooses one.
    """
    begin, set_limit, default = _WorkflowWorker.__init__, plugin._set_task_limit, Settings().workflow_task_limit

    def patiently(self: _WorkflowWorker, *args: Any, **options: Any) -> None:
        begin(self, *args, **options)
        self._deadlock_timeout_seconds = 30

    def set_patient_limit(worker: Worker, limit: timedelta) -> None:
        set_limit(worker, timedelta(seconds=30) if limit == default else limit)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(_WorkflowWorker, "__init__", patiently)
        patched.setattr(plugin, "_set_task_limit", set_patient_limit)
        patched.setattr(watchdog, "REPORT_AFTER_S", 60.0)
        yield


@pytest.fixture(scope="session", autouse=True)
def read_certificates_once() -> Iterator[None]:
    """Let all HTTP clients share the certificates of authorities. Reading them takes 50 ms for each client."""
    with pytest.MonkeyPatch.context() as patched:
        for module, name in ((ssl, "create_default_context"), (httpcore2, "default_ssl_context")):
            patched.setattr(module, name, functools.cache(getattr(module, name)))
        yield


@pytest.fixture
def logs() -> Iterator[list[MutableMapping[str, Any]]]:
    """Return the log events of a test, from warnings up."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    with capture_logs() as entries:
        yield entries
    structlog.configure(**before)


@pytest.fixture
def set_zone() -> Iterator[SetZone]:
    """Set the local time zone of this process for one test."""
    with pytest.MonkeyPatch.context() as patched:

        def set_zone(name: str) -> None:
            patched.setenv("TZ", name)
            time.tzset()

        yield set_zone
    time.tzset()


@pytest.fixture
async def gemini() -> AsyncIterator[FakeGemini]:
    """Run a server with Gemini's rules."""
    async with FakeGemini() as gemini:
        yield gemini


@pytest.fixture
def provider() -> Iterator[FakeOAuth]:
    """Run a provider of logins with one client, and a calendar that only its tokens open."""
    with FakeOAuth() as provider:
        yield provider


@pytest.fixture(scope="session")
def openid() -> Iterator[FakeOpenId]:
    """Run an identity provider for tests that do not change it."""
    with FakeOpenId() as provider:
        yield provider


@pytest.fixture
def own_openid() -> Iterator[FakeOpenId]:
    """Run an identity provider for tests that change it."""
    with FakeOpenId() as provider:
        yield provider


@pytest.fixture(scope="session")
def s3_environment() -> Iterator[Mapping[str, str]]:
    """Return the environment variables for clients of an S3 server."""
    from tests.store_servers import s3_server

    with s3_server() as environment:
        yield environment


@pytest.fixture
def s3(s3_environment: Mapping[str, str], monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the URL of an empty place in a bucket, which this process can use."""
    for name, value in s3_environment.items():
        monkeypatch.setenv(name, value)
    return f"s3://bucket/{uuid.uuid4()}/some/prefix"


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """Return the URL of a PostgreSQL server, without a database."""
    from tests.store_servers import postgres_server

    with postgres_server() as url:
        yield url


@pytest.fixture
def postgres(postgres_url: str) -> str:
    """Return the URL of an empty database."""
    import psycopg

    name = f"test_{uuid.uuid4().hex}"
    with psycopg.connect(f"{postgres_url}postgres", autocommit=True) as connection:
        # Copying files takes two thirds of the time of the default strategy.
        connection.execute(f"CREATE DATABASE {name} STRATEGY file_copy".encode())
    return f"{postgres_url}{name}"
