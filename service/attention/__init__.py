"""Attention in a request and in an answer: what is selected, what is made of the weights, and their bytes."""
