"""What the services and the gateway share: types, errors, configuration, servers and channels."""
