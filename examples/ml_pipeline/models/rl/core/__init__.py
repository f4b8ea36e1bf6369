"""`vec_env`: vector environment of the document."""
