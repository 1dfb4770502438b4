"""The service: a table on HTTP, with a page to look into it. Needs the extra ``serve``.

- :func:`run`: serve until the process is told to stop; :func:`log_to_stderr`: with its messages.
- :func:`create_app`: the application alone, for an ASGI server of your own.
- :class:`ServeSettings`: what can be set.
- :class:`Client`: ask a service from Python.
"""

from typing import TYPE_CHECKING

from hashcade._lazy import lazy_names

if TYPE_CHECKING:
    from hashcade.serve.app import create_app
    from hashcade.serve.client import Client, ServiceError
    from hashcade.serve.server import log_to_stderr, run
    from hashcade.serve.settings import ServeSettings
else:  # hidden from type checkers: with __getattr__ in sight they would accept any name
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "app": ["create_app"],
            "client": ("Client", "ServiceError"),
            "server": ("log_to_stderr", "run"),
            "settings": ["ServeSettings"],
        },
    )

__all__ = ["Client", "ServeSettings", "ServiceError", "create_app", "log_to_stderr", "run"]
