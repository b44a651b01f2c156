"""Branches: the paths of parallel agents, which decide what an agent sees of the others."""


def sees(branch: str | None, event_branch: str | None) -> bool:
    """Whether an event is seen on a branch: it is where it happened, or further up. Without a branch all is seen."""
    return not branch or not event_branch or f"{branch}.".startswith(f"{event_branch}.")
