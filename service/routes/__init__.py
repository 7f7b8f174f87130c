"""One file for each API or path; each declares its routes, and `table.py` lists all of them."""
