"""Entry point for `python -m waystation`, which runs the same program as `waystation`."""

from waystation.cli.program import main

if __name__ == "__main__":
    main()
