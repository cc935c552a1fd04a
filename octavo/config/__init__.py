"""Options, what they resolve to, and why."""

from octavo.base.environment import Environment, read_environment
from octavo.config.args import EngineArgs, ServerArgs, with_environment
from octavo.config.machine import Machine, probe_machine
from octavo.config.resolve import (
    Decision,
    EngineConfig,
    ModelFacts,
    blocks_for,
    check_server,
    resolve,
)

__all__ = [
    "Decision",
    "EngineArgs",
    "EngineConfig",
    "Environment",
    "Machine",
    "ModelFacts",
    "ServerArgs",
    "blocks_for",
    "check_server",
    "probe_machine",
    "read_environment",
    "resolve",
    "with_environment",
]
