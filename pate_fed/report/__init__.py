"""What a run leaves for people and programs: log, metrics, report, progress on the terminal.

Nothing heavy is imported here; jinja2 and rich are imported where they are used.
"""
