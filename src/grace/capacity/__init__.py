"""How full a backbone is, what follows from it, and how two backbones become one: pure functions."""
