"""A ledger that was opened elsewhere, by whoever got it: every row checked, every ε computed again.

Beside a ledger lies verify_independent.py, which needs Python alone and shares no code with this package.
"""

import subprocess
import sys

from pate_fed import simulate
from pate_fed.privacy import Ledger

run = simulate({"parties": {"num_clients": 250}}, quiet=True)
report = Ledger.read(run.path)
print(report)
print(report.epsilon, [event.asked for event in report.events])
subprocess.run([sys.executable, run.path / "verify_independent.py", run.path], check=True)
