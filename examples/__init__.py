"""Short programs over `service.engine.Engine`, each a use of its own."""
