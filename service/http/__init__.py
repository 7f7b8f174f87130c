"""From a connection's bytes to a route and back: limits, timers, keys, failures."""
