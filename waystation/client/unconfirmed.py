"""What it means that nobody confirmed an update."""

import asyncio


def unconfirmed(error: Exception) -> BaseException:
    """Return `error`, unless whoever waited was told to stop waiting: the SDK reports both alike."""
    task = asyncio.current_task()
    return asyncio.CancelledError() if task and task.cancelling() else error
