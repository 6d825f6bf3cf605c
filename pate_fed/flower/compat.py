"""What `pate_fed` needs of Flower and Ray beyond their public API; the one file to read when they move on.

Written against flwr 1.39 (the same names were read in 1.41) and Ray 2.55. `tests/flower` guards them.
"""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from flwr.app import Message
from flwr.supercore.logger import update_console_handler
from flwr.supercore.task_identity import TaskIdentity

from pate_fed.errors import InputError, PateFedError

if TYPE_CHECKING:
    from ray.job_config import JobConfig

_TOKEN = "RAY_AUTH_TOKEN"
_ALIVE = "/ray.rpc.NodeInfoGcsService/CheckAlive"  # changes nothing, and needs no argument
_ANSWER_S = 10.0


def set_identity(*, run_id: int, node_id: int) -> None:
    """Say whose messages this process builds; `Message` refuses to be built before."""
    TaskIdentity.run_id = run_id
    TaskIdentity.node_id = node_id
    TaskIdentity.task_id = 1


def stamp(message: Message) -> str:
    """Give a message the id that a SuperLink would give it."""
    message_id = str(uuid4())
    message.metadata.__dict__["_message_id"] = message_id
    return message_id


@contextmanager
def quiet_flower() -> Iterator[None]:
    """Keep Flower's and Ray's informative lines from burying the progress bars; errors show, uncoloured."""
    loggers = [logging.getLogger(name) for name in ("flwr", "ray")]
    before = [logger.level for logger in loggers]
    os.environ["RAY_LOG_TO_STDERR"] = "0"
    update_console_handler(colored=False)
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, old in zip(loggers, before, strict=True):
            logger.setLevel(old)


@contextmanager
def own_token() -> Iterator[None]:
    """A random token for one run, without which nobody joins its Ray and runs code beside private records.

    It is in the environments of this process and its children, which only this user reads, and nowhere else.
    A token of the user's own is put back afterwards.

    Raises:
        PateFedError: Ray was loaded before `prepare_environment` could have it ask for tokens.
    """
    if not token_mode():
        raise PateFedError("Ray was imported before pate_fed, and takes anyone in: import pate_fed first")
    before = os.environ.get(_TOKEN)
    os.environ[_TOKEN] = secrets.token_hex(32)
    _raylet().AuthenticationTokenLoader.instance().reset_cache()
    try:
        yield
    finally:
        del os.environ[_TOKEN]
        if before is not None:
            os.environ[_TOKEN] = before


def token_mode() -> bool:
    """Whether this process's Ray asks for tokens and shows its own; fixed when Ray is imported."""
    raylet = _raylet()
    return bool(raylet.get_authentication_mode() == raylet.AuthenticationMode.TOKEN)


def _raylet() -> Any:
    """Ray's own part, whose types leave out what is used here."""
    from ray import _raylet as found

    return found


def token_header() -> dict[str, str]:
    """The user's own token as Ray sends it, from where Ray finds it; empty where there is none.

    Raises:
        InputError: the file that RAY_AUTH_TOKEN_PATH names cannot be read.
    """
    from ray.exceptions import AuthenticationError

    loader = _raylet().AuthenticationTokenLoader.instance()
    loader.reset_cache()
    try:
        if not loader.has_token(ignore_auth_mode=True):
            return {}
        return {key.lower(): value for key, value in loader.get_token_for_http_header().items()}
    except AuthenticationError as error:
        raise InputError("RAY_AUTH_TOKEN_PATH: names no file that can be read, or an empty one") from error


def find_cluster(address: str) -> str:
    """The HOST:PORT of a cluster; auto is the one that was started here; InputError where none is."""
    from ray._private import services

    try:
        return str(services.canonicalize_bootstrap_address_or_die(address))
    except (ConnectionError, ValueError, OSError) as error:
        raise InputError(
            f"--ray-address {address}: no Ray cluster is found; run this on one of its nodes, and give "
            "HOST:PORT where several run there"
        ) from error


def asks_for_token(address: str, header: dict[str, str]) -> bool:
    """Whether a cluster turns away who comes with this header; with none it tells whether it asks at all.

    Raises:
        InputError: nothing answers there.
    """
    import grpc
    from ray._private import grpc_utils

    room: Any = grpc_utils
    if os.environ.get("RAY_USE_TLS", "0").lower() in ("1", "true"):
        chain, key, authority = room.load_certs_from_env()
        channel = grpc.secure_channel(address, grpc.ssl_channel_credentials(authority, key, chain))
    else:
        channel = grpc.insecure_channel(address)
    with channel:
        try:
            channel.unary_unary(_ALIVE)(b"", timeout=_ANSWER_S, metadata=tuple(header.items()))
        except grpc.RpcError as error:
            if error.code() == grpc.StatusCode.UNAUTHENTICATED:
                return True
            raise InputError(
                f"--ray-address {address}: no Ray cluster answers there ({error.code().name})"
            ) from error
    return False


@contextmanager
def unheard_errors() -> Iterator[None]:
    """Join a cluster without having its nodes' errors written on this process's standard output."""
    from ray._private import worker

    with _replaced(worker, "listen_error_messages", lambda *given: None):
        yield


@contextmanager
def apart_from_signals() -> Iterator[None]:
    """Start Ray's processes in sessions of their own: a signal to this process's group is not for them.

    They end with this process all the same, as the kernel tells them.
    """
    from ray._private import services

    room: Any = services
    with _replaced(room, "ConsolePopen", partial(room.ConsolePopen, start_new_session=True)):
        yield


@contextmanager
def known_pools() -> Iterator[Callable[[], None]]:
    """Know the actors of Flower's engine; gives what ends those that are still at work, without a word.

    Flower's engine waits for each of them when the ServerApp is over, however long a party would take that
    was given up. Those that it has no part in any more are told as faults.
    """
    import ray
    from flwr.simulation.ray_transport.ray_actor import BasicActorPool

    pool: Any = BasicActorPool
    add, pools = pool.add_actors_to_pool, list[Any]()

    def noted(self: Any, count: int) -> None:
        pools.append(self)
        add(self, count)

    def end() -> None:
        busy = [actor for each in pools for actor in list(each._future_to_actor.values())]
        if busy:
            logging.getLogger("flwr").setLevel(logging.CRITICAL)
        for actor in busy:
            ray.kill(actor)

    with _replaced(pool, "add_actors_to_pool", noted):
        yield end


@contextmanager
def _replaced(room: Any, name: str, by: Callable[..., Any]) -> Iterator[None]:
    before = getattr(room, name)
    setattr(room, name, by)
    try:
        yield
    finally:
        setattr(room, name, before)


def isolated_job() -> JobConfig:
    """A Ray job whose workers do not search the driver's current folder for modules, as Ray has them do."""
    from ray.job_config import JobConfig

    class IsolatedJob(JobConfig):
        def _runtime_env_has_working_dir(self) -> bool:
            return True

    return IsolatedJob()
