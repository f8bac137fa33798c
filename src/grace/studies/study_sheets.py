"""All tables of a study as they are shown."""

from collections.abc import Sequence

from grace.studies.front_table import front_tables
from grace.studies.measure_table import measure_tables
from grace.studies.sheet import Sheet
from grace.studies.study_results import Results
from grace.studies.study_table import protocol_tables, shown


def study_sheets(results: Results) -> Sequence[tuple[str, Sheet]]:
    """Return the tables of a study with their headings: results, then fronts, then measures.

    Args:
        results: the study's numbers.
    """
    return [
        *((table.protocol, shown(table, results)) for table in protocol_tables(results)),
        *((front.name, front.shown()) for front in front_tables(results)),
        *((measures.name, measures.shown()) for measures in measure_tables(results)),
    ]
