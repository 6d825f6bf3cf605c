"""A study that runs in the background of a notebook, and is looked at meanwhile."""

from concurrent.futures import ThreadPoolExecutor

from pate_fed import Step, simulate

heard = list[Step]()
study = {"parties": {"num_clients": 250}}
going = ThreadPoolExecutor().submit(simulate, study, quiet=True, on_progress=heard.append)
print(going.done(), heard[-1:])  # in a notebook these lie in cells of their own
print(going.result())  # waits for its end
print({step.phase: f"{step.done} of {step.total}" for step in heard if step.phase})
