"""The two apps of the project: pate_fed's, with a teacher of one's own and a Flower mod around every message.

Without either, `pyproject.toml` can name `pate_fed:server_app` and `pate_fed:client_app` themselves.
"""

from collections.abc import Callable

from flwr.app import Context, Message
from sklearn.linear_model import LogisticRegression

from pate_fed import make_client_app, make_server_app

teacher = LogisticRegression(C=0.1)  # what each party trains on its own images; found by name everywhere


def count_bytes(message: Message, context: Context, call_next: Callable[..., Message]) -> Message:
    """A Flower mod: says what a party's answer weighs, and changes nothing."""
    reply = call_next(message, context)
    arrays = reply.content.array_records.values() if reply.has_content() else ()
    size = sum(record.count_bytes() for record in arrays)
    print(f"{message.metadata.message_type}: {size} bytes of arrays", flush=True)
    return reply


client_app = make_client_app(mods=[count_bytes])
server_app = make_server_app({"teacher": {"name": "pate_study.apps:teacher"}})
