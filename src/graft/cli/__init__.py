"""The `graft` command. `main` reads the command line; each command has a file of its own."""
