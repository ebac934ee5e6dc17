"""The `pfvm` command and what it prints."""
