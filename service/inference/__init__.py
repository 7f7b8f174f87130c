"""Batches of token ids to arrays: the seam, and ONNX Runtime behind it. Knows no texts and no requests."""
