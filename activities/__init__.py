"""Side effects: model calls, tool calls, and the view of the conversation that both need."""
