"""Whether a connection may do without TLS: the rules of --tls-dir, --insecure and --insecure-anywhere."""

from __future__ import annotations

import argparse

from pate_fed.errors import InputError


def check_security(arguments: argparse.Namespace, host: str, *, where: str, keys: str) -> None:
    """Hold --tls-dir, --insecure and --insecure-anywhere to each other and to `host`.

    `where` names the option that the host came with, `keys` what belongs into --tls-dir.

    Raises:
        InputError: they contradict each other, or votes would cross a network unprotected.
    """
    from pate_fed.runtime.addresses import is_loopback

    open_ = arguments.insecure or arguments.insecure_anywhere
    if arguments.tls_dir is not None:
        if open_:
            raise InputError("--tls-dir and --insecure: one of the two")
        return
    if arguments.insecure_anywhere and not arguments.insecure:
        raise InputError(
            "--insecure-anywhere: say it twice, as votes are then open to the network: --insecure too"
        )
    if not open_:
        raise InputError(f"give --tls-dir with {keys}, or --insecure on one machine only")
    if not is_loopback(host) and not arguments.insecure_anywhere:
        raise InputError(
            f"--insecure with {where}: votes would cross the network unprotected; use --tls-dir, or add "
            "--insecure-anywhere to say that you mean it"
        )
