"""A Valkey or Redis that several gateways share: connections, commands, what came of them."""
