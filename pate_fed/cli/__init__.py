"""The commands of `pate-fed`. Only this room and the entry points import both parties' sides."""
