"""W3C trace context from client to upstream, and spans where they are asked for."""
