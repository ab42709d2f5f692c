"""The `dartspec` command."""
