"""The app bundle that Flower wants: a thin shim without code, and the check that a hospital makes of it.

In Flower the coordinator ships the app's code. A hospital of `pate_fed` runs what it installed, never what it
is sent: a bundle is compared with the one expected byte for byte, and never opened.
"""

from __future__ import annotations

import hashlib
import zipfile
from io import BytesIO

# Names of apps, no code: what runs is installed on either side.
_PYPROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "pate-fed-shim"
version = "1.0.0"
description = "Names the installed apps of pate_fed; holds no code"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "pate-fed"

[tool.flwr.app.components]
serverapp = "server.app:app"
clientapp = "clients.app:app"

[tool.flwr.app.config]
"""


def build_bundle() -> bytes:
    """The shim as a Flower app bundle: an archive of the project file and its digest, always the same."""
    content = _PYPROJECT.encode()
    manifest = f"pyproject.toml,{hashlib.sha256(content).hexdigest()},{len(content) * 8}"
    buffer = BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, text in (("pyproject.toml", content), (".info/CONTENT", manifest.encode())):
            entry = zipfile.ZipInfo(name)  # with a fixed date
            entry.create_system = 3  # the same on every system
            archive.writestr(entry, text)
    return buffer.getvalue()


def is_the_shim(bundle: bytes) -> bool:
    """Whether a bundle is the shim, byte for byte; it is not opened to find out."""
    return bundle == build_bundle()
