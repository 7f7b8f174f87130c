"""Several processes that serve on one port: the parent, which serves nothing, and its children."""
