"""What each input token contributes to a text's hidden state and to the task's output, through every layer (torch)."""
