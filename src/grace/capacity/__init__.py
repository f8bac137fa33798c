"""How full a backbone is, what follows, and how two become one: pure functions."""
