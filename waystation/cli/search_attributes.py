"""Create the search attributes by which invocations are found."""

from temporalio.service import RPCError, RPCStatusCode

from waystation.cli.exits import Exit, Problem
from waystation.cli.output import Output
from waystation.client import SEARCH_ATTRIBUTE_TYPES, AgentClient, add_search_attributes, fetch_search_attributes
from waystation.core.wire import SEARCH_ATTRIBUTES


async def create(client: AgentClient, out: Output) -> Exit:
    """Create those that are missing."""
    namespace = client.temporal.namespace
    try:
        found = await fetch_search_attributes(client.temporal)
        for name, kind in SEARCH_ATTRIBUTES.items():
            if found.get(name, SEARCH_ATTRIBUTE_TYPES[name]) != SEARCH_ATTRIBUTE_TYPES[name]:
                raise Problem(
                    Exit.FAILED,
                    f"The search attribute {name!r} of namespace {namespace!r} is of another type than {kind}; "
                    "remove or rename it with `temporal operator search-attribute`.",
                )
        missing = [name for name in SEARCH_ATTRIBUTE_TYPES if name not in found]
        if missing:
            await add_search_attributes(client.temporal, missing)
    except RPCError as error:
        if error.status in (RPCStatusCode.UNIMPLEMENTED, RPCStatusCode.PERMISSION_DENIED):
            wanted = ", ".join(f"{name} ({kind})" for name, kind in SEARCH_ATTRIBUTES.items())
            raise Problem(
                Exit.NOT_ALLOWED,
                f"This server does not let clients create search attributes ({error.message}). Create them as its "
                f"operator does, in Temporal Cloud with `tcld` or the Web UI: {wanted}.",
            ) from None
        raise
    present = [name for name in SEARCH_ATTRIBUTES if name not in missing]
    if out.json:
        out.record({"namespace": namespace, "created": missing, "present": present})
    elif missing:
        out.line(f"Created in namespace {namespace}: {', '.join(missing)}. Restart workers that run already.")
    else:
        out.line(f"Namespace {namespace} has all search attributes already.")
    return Exit.OK
