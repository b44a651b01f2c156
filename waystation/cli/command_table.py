"""Waystation's own commands, with their modules and their help. Other packages may provide more."""

from waystation.core.actions import ACTIONS

COMMANDS: dict[str, dict[str, tuple[str, str]]] = {
    "Develop agents": {
        "demo": ("demo", "Watch an agent survive a crash while a call waits for approval."),
        "new": ("scaffold", "Create an agent package with a test."),
        "dev": ("development", "Run agents while you write them, and chat with them."),
    },
    "Run agents": {
        "run": ("invocations", "Start an invocation and follow it until it ends."),
        "schedule": ("invocations", "Start an invocation at regular times."),
        "list": ("invocation_table", "List invocations, with filters."),
        "stop": ("invocation_table", "Cancel an invocation."),
        "events": ("recordings", "Print the events of an invocation, or follow it."),
        "state": ("recordings", "Print the state of an invocation."),
        "chat": ("sessions", "Chat with an agent."),
        "sessions": ("sessions", "List sessions."),
        "session": ("sessions", "Show, close or delete a session."),
    },
    "Answer pending calls": {
        "pending": ("pending_calls", "List calls that are waiting for a person."),
        "unknown": ("pending_calls", "List calls about which it is unknown whether they took effect."),
        **{row.command: ("pending_calls", row.help) for row in ACTIONS.values() if row.help},
        "authorize": ("pending_calls", "Provide the credential that a call is waiting for."),
    },
    "Debug": {
        "debug": ("debugger", "Step through an invocation, forward and backward."),
        "prompt": ("recordings", "Print a model call's prompt as the model saw it."),
        "diff": ("recordings", "Compare the events of two invocations."),
        "history": ("recordings", "Print the history of an invocation as JSON."),
        "replay": ("recordings", "Replay histories against the current code."),
        "rerun": ("reruns", "Run a recorded tool or model call again locally."),
        "fork": ("forks", "Start an invocation that continues from an event of another."),
        "forks": ("forks", "List the forks of an invocation."),
        "report": ("recordings", "Write a report about an invocation as an HTML page."),
        "audit": ("audits", "Export or verify the record of approvals and answers."),
        "policy": ("policies", "Try approval policies on recorded calls before they count."),
    },
    "Operate": {
        "worker": ("servers", "Serve agents. `waystation worker --help` lists the options."),
        "web": ("servers", "Serve the web application: inbox, timelines and API."),
        "chat-approvals": ("servers", "Let people answer pending calls in Slack."),
        "mcp": ("servers", "Serve agents to an MCP client over standard input and output."),
        "codec-server": ("servers", "Decrypt payloads for Temporal's Web UI."),
        "migrate": ("migrations", "Change the imports of a program that was written for ADK."),
        "doctor": ("operations", "Find problems of servers, workers, settings and invocations."),
        "workers": ("overview", "List the workers of a task queue."),
        "top": ("overview", "Watch how many invocations run, wait and fail, by agent."),
        "retry": ("operations", "Try a held invocation again now."),
        "give-up": ("operations", "Fail what is held in an invocation."),
        "budget": ("spending", "List what tenants and users have used."),
        "server": ("folder_server", "Stop the Temporal server of this folder."),
        "setup": ("servers", "Create the search attributes in a namespace."),
        "identity": ("servers", "Create keys for verified answers."),
        "encryption": ("servers", "Create or delete keys that encrypt histories and stores."),
        "store": ("stores", "Remove stored data that is no longer in use."),
        "forget": ("user_data", "Delete everything that is stored for a user."),
    },
}
"""The panels of the help with Waystation's own commands.

Each command is listed with the module that contains the function of the same name, and with its one-line help.
"""
