"""One file a concern; each adds its routes to the app."""
