"""What a run leaves for people and programs: log, metrics, report, progress, comparisons.

Nothing heavy is imported here; jinja2 and rich are imported where they are used.

Begin with `run.py`: `Run.load` reads a run directory. `html.py` writes the report, `metrics.py` the figures
for programs, `terminal.py` the progress. `watching.py` follows a run while it goes on. What protects imports
nothing of this room.
"""
