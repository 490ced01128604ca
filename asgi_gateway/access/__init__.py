"""API keys: what they are, who may come in with which, and how much each may ask for."""
