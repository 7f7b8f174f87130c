"""One file for each API or path; each declares its routes, and `service.app` lists all of them."""
