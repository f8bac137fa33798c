"""The cells of a comparison: one run for every method and seed. Torch-free."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from grace.configs.experiment import ExperimentSettings
from grace.configs.load import ConfigWarning, load_experiment
from grace.configs.registry import METHODS, REFUSED_METHODS, why_unknown
from grace.text.nearest import did_you_mean
from grace.text.refusals import GraceError


@final
@dataclass(frozen=True)
class Cell:
    """One run of a comparison: a method with a seed."""

    method: str
    seed: int
    settings: ExperimentSettings

    @property
    def name(self) -> str:
        """What its files are called: "grace-s1"."""
        return f"{self.method}-s{self.seed}"


def cells_of(
    experiment: str,
    overrides: Sequence[str] = (),
    methods: Sequence[str] = (),
    seeds: Sequence[int] = (1, 2, 3),
) -> list[Cell]:
    """Resolve the runs of a comparison, seed by seed.

    Args:
        experiment: a packaged experiment, or the path of a YAML file; each method takes its preset
            there.
        overrides: ``key.path=value`` texts that hold for every run; a method's own settings are
            those of its preset, ``methods.der.grow.epochs=10``.
        methods: names; none takes all.
        seeds: each sets all four seeds of a run.

    Raises:
        ValueError: for unknown or repeated methods or seeds, an override that belongs to no
            comparison, or settings that are wrong.

    Warns:
        ConfigWarning: a setting has no effect in any run.
    """
    chosen = list(methods) or list(METHODS)
    for name in chosen:
        if not name:
            raise GraceError("a method's name is empty", "name methods as grace,der")
        if name in REFUSED_METHODS:
            raise GraceError(why_unknown(name))
        if name not in METHODS:
            raise GraceError(
                f"no method '{name}'{did_you_mean(name, METHODS)} (known: {', '.join(METHODS)})"
            )
    if not seeds:
        raise GraceError("a comparison needs a seed at least")
    for what, given in {"method": chosen, "seed": [str(seed) for seed in seeds]}.items():
        twice = next((text for text in given if given.count(text) > 1), None)
        if twice is not None:
            raise GraceError(f"{what} {twice} is given twice")
    for override in overrides:
        _refuse_single(override)
    pairs = [(name, seed) for seed in seeds for name in chosen]
    found = [
        _loaded(experiment, [*overrides, f"method={name}", f"seed={seed}"]) for name, seed in pairs
    ]
    # For some methods much has no effect; what has none for any is told, once.
    idle = set.intersection(*(set(told) for _, told in found))
    for line in (line for line in found[0][1] if line in idle):
        warnings.warn(line, ConfigWarning, stacklevel=2)
    return [Cell(*pair, settings) for pair, (settings, _) in zip(pairs, found, strict=True)]


def settings_of(
    experiment: str, overrides: Sequence[str], method: str, seed: int = 1
) -> ExperimentSettings:
    """Resolve the run of one method alone; what has no effect in it is not told.

    Raises:
        ValueError: for an unknown method, or settings that are wrong.
    """
    return _loaded(experiment, [*overrides, f"method={method}", f"seed={seed}"])[0]


def _loaded(experiment: str, overrides: Sequence[str]) -> tuple[ExperimentSettings, list[str]]:
    """Resolve one run, and say what has no effect in it."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ConfigWarning)
        settings = load_experiment(experiment, overrides)
    return settings, [str(warning.message) for warning in caught]


def _refuse_single(override: str) -> None:
    """Refuse what would set every run's method or seed alike."""
    key = override.partition("=")[0].strip()
    if key == "method":
        raise GraceError(f"'{override}': a comparison takes its methods by --methods")
    if key == "seed" or key.partition(".")[0] == "seeds":
        raise GraceError(f"'{override}': a comparison takes its seeds by --seeds")
    if key.startswith("method."):
        raise GraceError(
            f"'{override}' would hold for all methods",
            f"write methods.NAME.{key[len('method.') :]}=…",
        )
