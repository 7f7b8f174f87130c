"""Experiments: many short runs of the loop, compared over seeds. A run that is done is kept."""
