"""One run of a sweep as a process of its own: `python -m pate_fed.cli.sweep_child STUDY RUN_DIR PARENT`.

It ends with the sweep, however that ends, so that nobody goes on spending ε unseen.
"""

import pate_fed.runtime.isolation  # noqa: F401  # before any other import

# isort: split
import os
import signal
import sys
import threading
import time
from pathlib import Path

from pate_fed.errors import PateFedError, naming_extras
from pate_fed.runtime.signals import INTERRUPTED

_WATCH_S = 0.5


def main() -> int:
    """Run the study; the exit code. What went wrong is a sentence on standard error."""
    study, run_dir, parent = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    try:
        from pate_fed.cli.simulate import simulate

        with naming_extras("this study"):
            simulate(study, run_dir=run_dir, quiet=True)
    except PateFedError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


def _end_with(parent: int) -> None:
    """Ask this process to stop once its parent is gone, and end it if it does not heed that."""
    while os.getppid() == parent:
        time.sleep(_WATCH_S)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
