"""Drop-ins: what people use today, with our engine underneath. Change one import line, keep the rest."""
