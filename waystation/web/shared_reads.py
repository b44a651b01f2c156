"""Read visibility within one budget for all pages, and once for everyone who asks the same.

Temporal Cloud allows a namespace 30 visibility requests per second, which all its clients share. What is shared is the
server's answer to one query, which contains what a login may see. Pages still check what they show to a login.
"""

import asyncio
import copy
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable
from contextvars import ContextVar
from math import inf
from typing import Any, NamedTuple, TypeVar
from weakref import WeakValueDictionary

from cachetools import LRUCache
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode, WorkflowService

from waystation.client import AgentClient

T = TypeVar("T")

REST, MAX_REST_S = 5, 15.0
"""An answer is used again for 5 times as long as reading it took, up to 15 s, so that long lists cost little."""
OLDEST_S = 60.0
"""Age up to which an answer is used while the budget is spent."""
LONGEST_WAIT_S = 10.0
"""How long a request that has no answer waits for the budget."""
LATE_S = 5.0
"""Age from which pages say how old their content is. Open pages read it again that often."""
KEPT = 100
"""Number of answers in memory. The least recently used are dropped first."""

_used: ContextVar[list[float]] = ContextVar("used")


def record_reads() -> None:
    """Begin to record when the answers that the current request uses were read."""
    _used.set([])


def current_age_s() -> int:
    """Return the age of the oldest answer that the current request used, or 0 if it is not late."""
    age_s = time.monotonic() - min(_used.get([]), default=inf)
    return round(age_s) if age_s >= LATE_S else 0


class _Answer(NamedTuple):
    value: Any
    read_at: float
    rest_s: float


class SharedReads:
    """The budget, and the answers that were read within it."""

    def __init__(
        self,
        per_s: int = 10,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._clock, self._sleep = clock, sleep
        self._sent: deque[float] = deque([-inf] * per_s, per_s)
        """When the last requests were sent or, if they are waiting, will be."""
        self._answers: LRUCache[Hashable, _Answer] = LRUCache(KEPT)
        self._failures: LRUCache[Hashable, tuple[RPCError, float]] = LRUCache(KEPT)
        """The latest failure to read each answer, and when it ended."""
        self._locks: WeakValueDictionary[Hashable, asyncio.Lock] = WeakValueDictionary()

    async def read(self, key: Hashable, read: Callable[[], Awaitable[T]], *, max_age_s: float = 1.0) -> T:
        """Return an answer of at most this age, or one of up to `OLDEST_S` while the budget is spent.

        Raises:
            RPCError: The server does not answer, or too many requests are waiting for the budget.
        """
        asked_at = self._clock()
        async with self._locks.setdefault(key, asyncio.Lock()):  # requests that come in the meantime share the answer
            answer, now = self._answers.get(key), self._clock()
            oldest_s = OLDEST_S if self._sent[0] + 1.0 > now else max(max_age_s, answer.rest_s if answer else 0.0)
            if answer is None or now - answer.read_at > oldest_s:
                if (failure := self._failures.get(key)) and failure[1] > asked_at:
                    raise failure[0]
                try:
                    value = await read()
                    answer = _Answer(value, now, min(REST * (self._clock() - now), MAX_REST_S))
                    self._answers[key] = answer
                except RPCError as error:  # the server, too, has a budget, for all its clients
                    is_refused = error.status is RPCStatusCode.RESOURCE_EXHAUSTED
                    if answer is None or now - answer.read_at > OLDEST_S or not is_refused:
                        self._failures[key] = error, self._clock()
                        raise
        _used.get([]).append(answer.read_at)
        shared: T = answer.value
        return shared

    async def read_list(
        self, key: Hashable, read: Callable[[], AsyncIterator[T]], *, max_age_s: float = 1.0
    ) -> tuple[T, ...]:
        """Return an answer that is a list, read in the same way.

        Raises:
            RPCError: As for `read`.
        """

        async def read_all() -> tuple[T, ...]:
            return tuple([item async for item in read()])

        return await self.read(key, read_all, max_age_s=max_age_s)

    async def wait(self) -> None:
        """Wait until the budget allows another request.

        Raises:
            RPCError: Too many requests are waiting.
        """
        now = self._clock()
        at = max(now, self._sent[0] + 1.0)
        if at > now + LONGEST_WAIT_S:
            raise RPCError("too many requests wait for visibility", RPCStatusCode.RESOURCE_EXHAUSTED, b"")
        self._sent.append(at)
        await self._sleep(at - now)

    def limit(self, client: AgentClient) -> AgentClient:
        """Return a client that uses the same connection, and whose visibility requests wait for the budget."""
        service_client = copy.copy(client.temporal.service_client)
        service_client.workflow_service = service = WorkflowService(service_client)
        for name in ("list_workflow_executions", "count_workflow_executions"):
            setattr(service, name, self._delay(getattr(service, name)))
        temporal = Client(**(client.temporal.config() | {"service_client": service_client}))
        limited = AgentClient(temporal, task_queue=client.task_queue, blobs=client.blobs)
        limited.token_encryption = client.token_encryption
        return limited

    def _delay(self, send: Callable[..., Awaitable[T]]) -> Callable[..., Awaitable[T]]:
        async def send_in_turn(*args: Any, **options: Any) -> T:
            await self.wait()
            return await send(*args, **options)

        return send_in_turn
