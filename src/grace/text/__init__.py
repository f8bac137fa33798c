"""Words for people: units, escaping, near misses, refusals."""
