"""Other services' APIs, each a thin adapter over the same encode path."""
