"""Tools with servers of their own, which are started, killed and replaced."""
