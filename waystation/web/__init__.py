"""`waystation web`: the inbox, invocations and their events over HTTP. Needs the extra `web`."""
