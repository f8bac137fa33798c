"""The cells of a comparison: one run per method and seed. Imports no torch."""

import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from grace.base.errors import GraceError, Setting
from grace.base.words import did_you_mean
from grace.settings.effects import refuse_learner_settings
from grace.settings.experiment import ExperimentSettings
from grace.settings.load import ConfigWarning, load_experiment
from grace.settings.registry import METHODS, REFUSED_METHODS, why_unknown


@final
@dataclass(frozen=True)
class Cell:
    """One run of a comparison or a study: a method with a seed."""

    method: str
    seed: int
    settings: ExperimentSettings
    label: str = ""

    @property
    def name(self) -> str:
        """The label, or without one the base name of the run's files: "grace-s1"."""
        return self.label or f"{self.method}-s{self.seed}"


def cells_of(
    experiment: str,
    overrides: Sequence[str] = (),
    methods: Sequence[str] = (),
    seeds: Sequence[int] = (1, 2, 3),
) -> list[Cell]:
    """Resolve the runs of a comparison, seed by seed.

    Args:
        experiment: a packaged experiment, or the path of a YAML file; each method takes its preset
            from it.
        overrides: ``key.path=value`` texts for every run; ``methods.der.grow.epochs=10`` changes
            the preset of one method.
        methods: names of the methods; empty: all.
        seeds: one run per seed and method; a seed sets all four seeds of a run.

    Raises:
        GraceError: for unknown or repeated methods or seeds, an override of ``method`` or ``seed``,
            or settings that are wrong.

    Warns:
        ConfigWarning: if a setting has no effect in any run.
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
        raise GraceError("a comparison needs at least one seed", "give seeds such as 1,2,3")
    refuse_repeated("method", chosen)
    refuse_repeated("seed", seeds)
    for override in overrides:
        refuse_single(override)
    pairs = [(name, seed) for seed in seeds for name in chosen]
    found = [
        loaded(experiment, [*overrides, f"method={name}", f"seed={seed}"]) for name, seed in pairs
    ]
    # A setting may have no effect for some methods; warn once, if it has none for all of them.
    idle = set.intersection(*(set(lines) for _, lines in found))
    for line in (line for line in found[0][1] if line in idle):
        warnings.warn(line, ConfigWarning, stacklevel=2)
    return [Cell(*pair, settings) for pair, (settings, _) in zip(pairs, found, strict=True)]


def settings_of(
    experiment: str, overrides: Sequence[str], method: str, seed: int = 1
) -> ExperimentSettings:
    """Resolve the run of one method, without warnings about settings that have no effect.

    Args:
        experiment: a packaged experiment, or the path of a YAML file.
        overrides: ``key.path=value`` texts.
        method: name of the method.
        seed: sets all four seeds.

    Raises:
        GraceError: for an unknown method, or settings that are wrong.
    """
    return loaded(experiment, [*overrides, f"method={method}", f"seed={seed}"])[0]


def loaded(experiment: str, overrides: Sequence[str]) -> tuple[ExperimentSettings, list[str]]:
    """Resolve one run; return its settings and the warnings about settings without effect.

    Raises:
        GraceError: if a setting is wrong.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ConfigWarning)
        settings = load_experiment(experiment, overrides)
    refuse_learner_settings(settings)
    return settings, [str(warning.message) for warning in caught]


def refuse_repeated(kind: str, given: Sequence[object]) -> None:
    """Refuse a list that names something twice, which would count one run as two.

    Args:
        kind: what is listed, in messages: "seed".
        given: what was given.

    Raises:
        GraceError: if it does.
    """
    twice = next((one for one, number in Counter(given).items() if number > 1), None)
    if twice is not None:
        raise GraceError(f"{kind} {twice} is given twice", "name it once")


def refuse_single(override: str) -> None:
    """Refuse an override that gives every run the same method or seed.

    Raises:
        GraceError: if it does.
    """
    key = override.partition("=")[0].strip()
    if key == "method":
        raise GraceError(f"'{override}' would give all runs one method", setting=Setting("methods"))
    if key == "seed" or key.partition(".")[0] == "seeds":
        raise GraceError(f"'{override}' would give all runs one seed", setting=Setting("seeds"))
    if key.startswith("method."):
        raise GraceError(
            f"'{override}' would hold for all methods",
            f"write methods.NAME.{key[len('method.') :]}=…",
        )
