"""Counts what tools do, in a file that outlives the program."""

from pathlib import Path


def count(name):
    with Path("effects.txt").open("a") as file:
        file.write(f"{name}\n")
