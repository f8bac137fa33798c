"""The living model on disk: teach, judge, predict, forget, export, and its versions.

Everything of the product lives here. Runs, records and studies of research do not.
"""
