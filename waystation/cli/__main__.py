"""`python -m waystation.cli` is `waystation`."""

from waystation.cli.app import main

if __name__ == "__main__":
    main()
