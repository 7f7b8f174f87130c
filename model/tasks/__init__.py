"""What stands on the encoder: one module a task, from hidden states to the output that the task is for."""
