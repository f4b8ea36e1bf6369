"""Drop-ins beside the originals."""
