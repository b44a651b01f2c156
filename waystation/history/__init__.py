"""Read histories from a server or from files."""
