"""`pate-fed bench`: fixed tasks, on which private methods of learning are held against each other.

Begin with `protocol.py`: what a method gets, what it gives back, and how its ε is checked. `tasks.py` has the
tasks with their rules, `grid.py` the methods, and runs each in a process of its own.
"""

from pate_fed.bench.protocol import Ledger, NotApplicableError, Spent, Task, least_noise
from pate_fed.bench.tasks import TASKS, load_task

__all__ = ["TASKS", "Ledger", "NotApplicableError", "Spent", "Task", "least_noise", "load_task"]
