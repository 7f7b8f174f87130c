"""The head report: what each head of an encoder does on a corpus, and how much it matters."""
