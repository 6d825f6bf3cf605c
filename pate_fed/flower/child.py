"""Flower's long-running commands as children that end with their parent: `python -m pate_fed.flower.child`.

Called with the command's name, the parent's process id and the command's own arguments. However the parent
ends, also when it is killed, the child notices within a second and goes too. With TLS the environment holds
what `pate_fed.flower.guard` needs.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import traceback

from pate_fed.flower.environment import GUARD, prepare_environment

_WATCH_S = 0.5
_GRACE_S = 5.0


def main() -> None:
    """Run one of Flower's commands in this process."""
    command, parent = sys.argv[1], int(sys.argv[2])
    prepare_environment()
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    sys.argv = [command, *sys.argv[3:]]
    code = 1
    try:
        _run(command)
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:
        traceback.print_exc()
    # Flower's own threads would keep a SuperNode alive whose main thread is gone.
    sys.stderr.flush()
    os._exit(code)


def _run(command: str) -> None:
    if settings := os.environ.pop(GUARD, ""):
        from pate_fed.flower import guard

        guard.install(command, settings)
    if command == "flower-superlink":
        from flwr.superlink.cli.flower_superlink import flower_superlink

        from pate_fed.flower.patches import patch_superlink

        patch_superlink()
        flower_superlink()
    elif command == "flower-supernode":
        from flwr.supernode.cli.flower_supernode import flower_supernode

        from pate_fed.flower.patches import patch_supernode

        patch_supernode()
        flower_supernode()
    else:
        raise ValueError(f"unknown command {command!r}")


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_WATCH_S)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_GRACE_S)
    os._exit(1)


if __name__ == "__main__":
    main()
