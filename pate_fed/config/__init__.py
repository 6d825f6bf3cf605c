"""A study's settings, each declared once: from study.toml or options to frozen, checked values.

Begin with `study.py`: a `Study` is read from a file or from options, and `resolve` fills in what was left
out. `sections.py` declares the keys with type, range, unit and help. `registry.py` makes the built-in parts
of their settings, `defaults.py` chooses between votes and class sums, `template.py` writes the explained
study.toml and its schema.
"""
