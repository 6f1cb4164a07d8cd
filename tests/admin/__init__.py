"""The command line, from the user's side."""
