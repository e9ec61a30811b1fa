"""The command line: the only room that sees every other."""
