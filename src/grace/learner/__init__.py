"""The living model: update, predict, evaluate."""
