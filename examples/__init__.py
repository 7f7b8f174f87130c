"""Short programs over `polyhead.Engine`, each a use of its own."""
