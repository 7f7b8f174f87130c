"""Pruning: removing the heads that matter least, physically, and saying what that cost."""
