"""The user's agent program, and the proxy that it receives."""

from astune.workflow.agent_model import AgentModel
from astune.workflow.agentscope_protocol import AgentScopeLearnProtocol
from astune.workflow.base import Workflow, WorkflowOutput
from astune.workflow.episode_model import EpisodeModel
from astune.workflow.proxy import AstuneProxy
from astune.workflow.safe_tools import execute_python_code, execute_shell_command, run_python_code

__all__ = [
    "AgentModel",
    "AgentScopeLearnProtocol",
    "AstuneProxy",
    "EpisodeModel",
    "Workflow",
    "WorkflowOutput",
    "execute_python_code",
    "execute_shell_command",
    "run_python_code",
]
