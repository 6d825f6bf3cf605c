"""The commands of `pate-fed`. Only this room and the entry points import both parties' sides."""

import pate_fed.runtime.isolation  # noqa: F401  # before whatever a command imports
