"""`python -m waystation.cli` is `waystation`."""

from waystation.cli.program import main

if __name__ == "__main__":
    main()
