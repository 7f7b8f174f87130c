"""Encodes a corpus that outgrows one machine, with Ray Data over the service's own tokenizer and backend; no HTTP."""
