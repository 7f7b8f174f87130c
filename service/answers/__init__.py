"""From arrays to bytes. Answers hold arrays until `packing` writes them; none of this knows HTTP."""
