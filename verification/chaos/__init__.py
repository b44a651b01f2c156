"""Kill and stop workers and servers while people answer, then check histories and effects.

Run `python -m verification.chaos`.
"""
