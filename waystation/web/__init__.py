"""`waystation web`: the inbox, invocations and their events over HTTP. Requires the extra `web`."""
