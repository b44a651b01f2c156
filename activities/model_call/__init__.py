"""Ask an agent's model once: the activity `call_model`, its request, and what is recorded of the reply."""
