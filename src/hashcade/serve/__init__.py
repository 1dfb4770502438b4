"""The service: an index on HTTP, with a page to look into it. Needs the extra ``serve``.

- :func:`run`: serve until the process is told to stop.
- :func:`create_app`: the application alone, to be run by a server of your own.
- :class:`ServeSettings`: what can be set.
- :class:`Client`: ask a service from Python.
"""

from typing import TYPE_CHECKING

from hashcade._lazy import lazy_names

if TYPE_CHECKING:
    from hashcade.serve._app import create_app
    from hashcade.serve._client import Client, ServiceError
    from hashcade.serve._run import run
    from hashcade.serve._settings import ServeSettings
else:  # hidden from type checkers: with __getattr__ in sight they would accept any name
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "Client": "hashcade.serve._client",
            "ServeSettings": "hashcade.serve._settings",
            "ServiceError": "hashcade.serve._client",
            "create_app": "hashcade.serve._app",
            "run": "hashcade.serve._run",
        },
    )

__all__ = ["Client", "ServeSettings", "ServiceError", "create_app", "run"]
