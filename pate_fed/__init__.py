"""PATE as a federation: hospitals vote on public inputs, or few of them give one noisy sum under masks.

`simulate` runs a study with all its parties on this machine, `Run` is what it leaves, `plan` says beforehand
what a budget affords. Accounting by itself is in `pate_fed.privacy`.
"""

TYPE_CHECKING = False  # nothing is imported here: `python -m` looks into the current folder first
if TYPE_CHECKING:
    from pate_fed.cli.classifier import PateClassifier
    from pate_fed.cli.simulate import simulate
    from pate_fed.config.study import Study
    from pate_fed.format import VERSION as __version__
    from pate_fed.privacy.planning.planner import Plan, plan
    from pate_fed.report.run import Run
    from pate_fed.report.terminal import Step

__all__ = [
    "PateClassifier",
    "Plan",
    "Run",
    "Step",
    "Study",
    "__version__",
    "plan",
    "simulate",
]


def __getattr__(name: str) -> object:
    """The public names, each imported when it is first asked for: `import pate_fed` stays light."""
    if name == "simulate":
        from pate_fed.cli.simulate import simulate

        return simulate
    if name == "PateClassifier":
        from pate_fed.cli.classifier import PateClassifier

        return PateClassifier
    if name in ("plan", "Plan"):
        from pate_fed.privacy.planning import planner

        return getattr(planner, name)
    if name == "Study":
        from pate_fed.config.study import Study

        return Study
    if name == "Run":
        from pate_fed.report.run import Run

        return Run
    if name == "Step":
        from pate_fed.report.terminal import Step

        return Step
    if name == "__version__":
        from pate_fed.format import VERSION

        return VERSION
    raise AttributeError(f"module 'pate_fed' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
