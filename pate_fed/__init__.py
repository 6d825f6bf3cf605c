"""PATE as a federation: hospitals vote on public inputs, or few of them give one noisy sum under masks.

`simulate` runs a study with all its parties on this machine, `Run` is what it leaves, `plan` says beforehand
what a budget affords. Accounting by itself is in `pate_fed.privacy`. `server_app` and `client_app` are what a
Flower project of one's own names; the functions that make them take its settings and mods.
"""

TYPE_CHECKING = False  # nothing is imported here: `python -m` looks into the current folder first
if TYPE_CHECKING:
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp

    from pate_fed.cli.flower_app import make_client_app, make_server_app
    from pate_fed.cli.simulate import simulate
    from pate_fed.config.study import Study
    from pate_fed.format import VERSION as __version__
    from pate_fed.privacy.planning.planner import Plan, plan
    from pate_fed.report.run import Run
    from pate_fed.report.terminal import Step

    client_app: ClientApp
    server_app: ServerApp

__all__ = [
    "Plan",
    "Run",
    "Step",
    "Study",
    "__version__",
    "client_app",
    "make_client_app",
    "make_server_app",
    "plan",
    "server_app",
    "simulate",
]


def __getattr__(name: str) -> object:
    """The public names, each imported when it is first asked for: `import pate_fed` stays light."""
    if name == "simulate":
        from pate_fed.cli.simulate import simulate

        return simulate
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
    if name in ("client_app", "make_client_app", "make_server_app", "server_app"):
        from pate_fed.cli import flower_app

        if name.startswith("make_"):
            return getattr(flower_app, name)
        return flower_app.the_client_app() if name == "client_app" else flower_app.the_server_app()
    if name == "__version__":
        from pate_fed.format import VERSION

        return VERSION
    raise AttributeError(f"module 'pate_fed' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
