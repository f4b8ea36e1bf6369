"""`vec_env`: the document's vector env."""
