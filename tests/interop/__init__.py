"""Drop-ins compared with the originals."""
