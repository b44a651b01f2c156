"""What may wait until the result of an activity is on its way: it then costs no time of whoever waits for that."""

import asyncio
import functools
from collections.abc import Callable
from typing import ParamSpec

P = ParamSpec("P")


def afterwards(step: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
    """Have `step` called once the running activity has returned and the SDK has sent what it returned.

    The event loop turns to it when the SDK next waits, which is for the server to take the result. It is called before
    the activity returned only where that still has something to wait for.
    """
    asyncio.get_running_loop().call_soon(functools.partial(step, *args, **kwargs))
