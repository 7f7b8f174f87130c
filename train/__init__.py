"""Making networks: recipes for one training loop, which writes folders that `export` reads."""
