"""The training side: what is not ours goes to a trainer behind the gateway, byte for byte."""
