"""Making networks: healing, gates, distillation, contrast, classification. Writes folders that `export` reads."""
