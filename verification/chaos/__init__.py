"""Kill and stop workers and servers while calls are answered, then check histories and effects.

Run `python -m verification.chaos`.
"""
