"""Texts to token ids, as the model was trained to read them."""
