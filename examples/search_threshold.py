"""Let Optuna choose GRACE's threshold and decay: high accuracy with few backbones.

Run it as ``python examples/search_threshold.py --trials 20``; it needs ``pip install optuna``.
Settings after the options apply to every run. Called again, it goes on with the next trials.
"""

import argparse
from pathlib import Path

import optuna

import grace


def main() -> None:
    """Run the trials, each a run of GRACE, and print those that no other one dominates."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE")
    parser.add_argument("--trials", type=int, default=10)
    parser.add_argument("--out", type=Path, default=Path("runs/search"))
    given = parser.parse_args()

    def trial(trial: optuna.Trial) -> tuple[float, float]:
        """Return average accuracy (%) and backbones of a run with the chosen settings."""
        threshold = trial.suggest_float("threshold", 0.3, 0.9)
        decay = trial.suggest_float("decay", 0.85, 1.0)
        record = grace.run(
            "digits",
            [
                *given.settings,
                f"method.threshold={threshold}",
                f"method.threshold_decay={decay}",
            ],
            directory=given.out / f"trial-{trial.number}",
            resume=True,
        )
        return record.average or 0.0, record.tasks[-1].backbones

    given.out.mkdir(parents=True, exist_ok=True)
    study = optuna.create_study(
        study_name="threshold",
        directions=["maximize", "minimize"],
        storage=f"sqlite:///{given.out / 'search.db'}",
        load_if_exists=True,
    )
    study.optimize(trial, n_trials=given.trials)
    for best in study.best_trials:
        accuracy, backbones = best.values
        print(f"{accuracy:.2f} % with {backbones:.0f} backbones: {best.params}")


if __name__ == "__main__":
    main()
