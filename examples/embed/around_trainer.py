"""The gateway around a Tinker API server written with FastAPI, as SkyRL's is: one process, one URL.

TRAINER names the server's factory as MODULE:FUNCTION. The trainer makes the sessions and samplers,
and where it publishes its vLLM in a database the gateway follows that (docs/skyrl.md).

    TRAINER=my_skyrl:create_app ASGI_GATEWAY_UPSTREAM__SOURCE=sqlite:////var/lib/tinker.db \\
        uvicorn --factory examples.embed.around_trainer:create_app
"""

import os
import pkgutil

from msgspec.structs import replace

from asgi_gateway import Gateway
from asgi_gateway.configuration import load
from asgi_gateway.settings import TrainingSettings


def create_app() -> Gateway:
    trainer = pkgutil.resolve_name(os.environ["TRAINER"])()
    settings = replace(load().settings, training=TrainingSettings(embedded=True))
    return Gateway(settings, inner=trainer)
