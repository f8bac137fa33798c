"""Files written whole and read with suspicion, errors, words for people, seeds.

Everything here could serve another program. Nothing here knows a network, a method or a run.
"""
