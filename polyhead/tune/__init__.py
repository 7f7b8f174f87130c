"""`polyhead tune`: which use of this machine's cores suits an artifact, measured over HTTP."""
