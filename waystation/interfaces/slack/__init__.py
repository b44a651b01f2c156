"""Approvals in Slack, for `waystation chat-approvals`. Requires the extras `slack`, `web` and `identity`."""
