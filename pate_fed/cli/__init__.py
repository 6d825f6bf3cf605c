"""The commands: `pate-fed` and the three programs. Only this room imports both parties' sides.

Begin with `main.py`, which lists the commands; each is a module with a function `add_NAME_command`.
`parser.py` keeps all help texts in one style, `simulate.py` runs a study from Python. `terms.py` puts a study
into words for a hospital. Nothing here decides what leaves a house or what it costs.
"""

import pate_fed.runtime.isolation  # noqa: F401  # before whatever a command imports
