"""What a running command needs: run directory, signals, console, addresses, places for its files.

Begin with `command.py`: errors of one sentence, and an outcome line at the end. `isolation.py` keeps the
current folder out of every import, `security.py` says who may do without TLS, `run_dir.py` and
`state_home.py` say where files lie.
"""
