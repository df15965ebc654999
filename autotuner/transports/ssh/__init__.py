"""SSH: a host that is reached over the network. The only door to paramiko."""
