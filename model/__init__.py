"""The encoder (torch), and the artifact contract between export and service (standard library only)."""
