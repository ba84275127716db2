"""Stoker on Ray: replicas under Ray Serve (`build_app`, `app_builder`).

`import stoker.ray` imports no Ray; its functions do.
"""

from .application import RayArguments, app_builder, build_app

__all__ = ["RayArguments", "app_builder", "build_app"]
