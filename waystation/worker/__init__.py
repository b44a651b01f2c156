"""Worker processes: find agents, connect, serve, drain."""
