"""Texts of many requests in runs of one size: the queue, its order, and the workers that empty it."""
