"""One model call: the activity, its request, and the recorded reply."""
