"""Drives requests round by round; routes, streams and accounts for them."""
