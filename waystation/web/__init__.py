"""Invocations over HTTP, for browsers and programs: `waystation web`. Installed with the extra `web`."""
