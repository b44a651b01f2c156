"""Threads for the code of authors that is not asynchronous, such as sync tools."""

import asyncio
import contextvars
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Result = TypeVar("Result")

TOOL_THREADS = "tool"
THREADS = ThreadPoolExecutor(sys.maxsize, thread_name_prefix=TOOL_THREADS)
"""Has no limit of its own: each call is part of an activity, and the worker limits those. The event loop's default pool
may have only six threads, which also look up host names. Additional tools would wait there, although their activities
appear to be running."""


async def run_in_thread(function: Callable[..., Result], *args: object) -> Result:
    """Like `asyncio.to_thread`, but use the threads for authors' code."""
    context = contextvars.copy_context()
    return await asyncio.get_running_loop().run_in_executor(THREADS, context.run, function, *args)
