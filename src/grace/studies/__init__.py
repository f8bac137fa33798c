"""Questions asked of many runs: plans, workers, tables, claims, figures, the report page.

All answers come from the records of runs alone, without torch. Nothing here trains.
"""
