"""One model call: its activity, its request and the recorded reply."""
