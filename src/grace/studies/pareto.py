"""Pareto front of a grid's rows: few backbones (x), high accuracy (y).

x and y are frames with a line for each row and a column for each seed; NaN: the run is missing.
"""

import math
from typing import TYPE_CHECKING

from grace.studies.results import StudyResult

if TYPE_CHECKING:
    import pandas as pd

    Frames = tuple[pd.DataFrame, pd.DataFrame]


def grid_numbers(result: StudyResult, protocol: str, key: str) -> "Frames":
    """Return the backbones and a metric of the rows of grids that have runs."""
    numbers = result.numbers.loc[protocol]
    rows = [row for row in result.grid_rows(protocol) if numbers[key].loc[row].notna().any()]
    x, y = (numbers[name].unstack("seed").reindex(rows) for name in ("backbones", key))
    return x, y


def shared(x: "pd.DataFrame", y: "pd.DataFrame") -> "Frames":
    """Return the seeds that all rows have."""
    return x.dropna(axis=1), y.dropna(axis=1)


def dominators(x: "pd.Series[float]", y: "pd.Series[float]") -> "pd.DataFrame":
    """Return which rows (columns) dominate each row: as good in x and y, and better in one."""
    as_good = {b: (x <= x[b]) & (y >= y[b]) & ((x < x[b]) | (y > y[b])) for b in x.index}
    import pandas as pd

    return pd.DataFrame(as_good, index=x.index).T


def points(x: "pd.Series[float]", y: "pd.Series[float]") -> "pd.Series[list[str]]":
    """Return the rows at each place (x, y), by rising x and y."""
    import pandas as pd

    rows = pd.DataFrame({"x": x, "y": y, "row": x.index})
    return rows.groupby(["x", "y"])["row"].agg(list)


def front_places(x: "pd.DataFrame", y: "pd.DataFrame") -> "pd.DataFrame":
    """Return where each row stands, over the seeds that all rows have; empty: there are none.

    Columns: ``is_on_front`` of the means; ``times``, the number of seeds in whose own front it is;
    ``seeds``, their number; ``dominated_by``, the number of rows that dominate it beyond noise: by
    means, and in y by more than two standard errors of the differences. NaN: one seed shows none.
    """
    import pandas as pd

    x, y = shared(x, y)
    seeds = x.shape[1]
    if not seeds:
        return pd.DataFrame()
    better = dominators(x.mean(axis=1), y.mean(axis=1))
    beyond = pd.Series(
        {
            row: sum(
                (y.loc[other] - y.loc[row]).mean()
                > 2 * (y.loc[other] - y.loc[row]).std() / math.sqrt(seeds)
                for other in better.columns[better.loc[row]]
            )
            for row in x.index
        }
    )
    times = sum((~dominators(x[seed], y[seed]).any(axis=1)).astype(int) for seed in x)
    return pd.DataFrame(
        {
            "is_on_front": ~better.any(axis=1),
            "times": times,
            "seeds": seeds,
            "dominated_by": beyond if seeds > 1 else math.nan,
        }
    )
