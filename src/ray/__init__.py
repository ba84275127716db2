"""Stoker on Ray: replicas under Ray Serve (`build_app`, `app_builder`), an engine for Ray Serve LLM (`StokerEngine`).

`import stoker.ray` imports no Ray; its functions do.
"""

from typing import Any

from .application import RayArguments, app_builder, build_app

__all__ = ["RayArguments", "StokerEngine", "app_builder", "build_app"]


def __getattr__(name: str) -> Any:
    if name == "StokerEngine":
        from .llm_engine import StokerEngine

        return StokerEngine
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
