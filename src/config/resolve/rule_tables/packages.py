"""Rules about packages beside this one, for parts that few deployments use. The format of a rule: ../rule.py."""

from __future__ import annotations

from collections.abc import Callable

from ....installation import package_command
from ...exit_codes import EXIT_ENVIRONMENT
from ..rule import Rule
from ..values import Values


def _in_package(*, rule_id: str, option: str, value: str, package: str, is_used: Callable[[Values], bool]) -> Rule:
    return Rule(
        id=rule_id,
        title=f"the package {package} is installed, in the version of Stoker",
        fields=(option,),
        about_machine=True,
        is_broken=lambda v: is_used(v) and package in v.machine.absent_packages,
        message=f"`{option}: {value}` needs the package {package}, which is not installed in this version",
        why="It is for few deployments, and therefore no part of Stoker itself.",
        fixes=(f"install {package} from where Stoker came from: {{install}}",),
        exit_code=EXIT_ENVIRONMENT,
        said=lambda _: {"install": package_command(package)},
    )


RULES: tuple[Rule, ...] = (
    _in_package(
        rule_id="R512",
        option="kv_transfer.kv_connector",
        value="LMCacheMPConnector",
        package="stoker-lmcache",
        is_used=lambda v: v.kv_transfer.is_lmcache,
    ),
    _in_package(
        rule_id="R513",
        option="parallel.distributed_executor_backend",
        value="external_launcher",
        package="stoker-launcher",
        is_used=lambda v: v.topology.is_launched,
    ),
)
