"""Threads for the code of authors that is not asynchronous, such as sync tools."""

import asyncio
import contextvars
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

Params = ParamSpec("Params")
Result = TypeVar("Result")

TOOL_THREADS = "tool"
THREADS = ThreadPoolExecutor(sys.maxsize, thread_name_prefix=TOOL_THREADS)
"""Has no limit of its own: each call is part of an activity, and the worker limits those. The event loop's default pool
may have only six threads, which it also uses to look up host names. Additional tools would wait there, although their
activities appear to be running."""


async def run_in_thread(function: Callable[Params, Result], *args: Params.args, **kwargs: Params.kwargs) -> Result:
    """Like `asyncio.to_thread`, but use the threads for authors' code."""
    call = partial(contextvars.copy_context().run, function, *args, **kwargs)
    return await asyncio.get_running_loop().run_in_executor(THREADS, call)
