"""One run is a scenario, a method and a seed; its record is what every table is made from.

Reading a record needs no torch. Versions, the gate and ceilings belong to learners, not to runs.
"""
