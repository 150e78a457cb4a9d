"""AppWorld's agent by a shorter name: `tutorial.appworld->ExampleAgentScopeLearnProtocol`."""

from tutorial.example_appworld.appworld import ExampleAgentScopeLearnProtocol

__all__ = ["ExampleAgentScopeLearnProtocol"]
