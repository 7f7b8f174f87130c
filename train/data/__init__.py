"""From files to batches: texts and rows are read, checked, tokenised, and put in the order of an epoch."""
