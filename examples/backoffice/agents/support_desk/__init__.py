"""Help for customers."""
