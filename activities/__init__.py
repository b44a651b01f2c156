"""The activities: model calls, tool calls, and what the engine has done outside of workflows."""
