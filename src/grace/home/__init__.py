"""A learner on disk: its versions, the journal of an unfinished update, its ceiling."""
