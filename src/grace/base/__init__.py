"""Texts for people: units, escaping, similar names, refusals."""
