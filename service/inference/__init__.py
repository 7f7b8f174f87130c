"""Batches of token ids to arrays: the seam, and the engines behind it. Knows no texts and no requests."""
