"""Operations: what can be done to a system, declared once for every door.

``operation``        an operation: name, request, answer, scope, HTTP form; ``operations`` is the table of all
``*_operations``     requests and declarations, by noun; they import nothing heavy
``documents``        what operations answer; ``core/record`` reads them from JSON
``system``           where operations happen: ``LocalSystem`` is a store opened here
``local``            what an operation does on a store; its modules are named after the classes of the declarations
``client``           ``AsyncClient``: a server as a system; ``Client`` blocks, with the loop of ``base/loop_thread``
``client_errors``    problem documents as exceptions
"""

from typing import TYPE_CHECKING

from asterism.base.startup import lazy_names

if TYPE_CHECKING:
    from asterism.api.client import AsyncClient as AsyncClient
    from asterism.api.client import Client as Client
    from asterism.api.client_errors import ApiError as ApiError
    from asterism.api.client_errors import NotAllowed as NotAllowed
    from asterism.api.client_errors import NotFound as NotFound
    from asterism.api.client_errors import ServerUnreachable as ServerUnreachable
    from asterism.api.client_errors import TryLater as TryLater

__getattr__, __dir__ = lazy_names(__name__)
