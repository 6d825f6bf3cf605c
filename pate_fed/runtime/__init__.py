"""What a running command needs: run directory, signals, console, addresses, places for its files.

Begin with `console.py`: errors of one sentence, and an outcome line at the end. `isolation.py` keeps the
current folder out of every import, `addresses.py` says who may do without TLS, `run_dir.py` where
files lie.
"""
