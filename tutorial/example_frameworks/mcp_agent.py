"""Tools behind the Model Context Protocol: this file is a server over stdio, and an agent that starts it."""

import asyncio
import json
import sys

from agents import Agent, Runner, set_tracing_disabled
from agents.mcp import MCPServerStdio
from mcp.server import MCPServer


def serve() -> None:
    server = MCPServer("calculator")

    @server.tool()
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    server.run()


async def main() -> None:
    set_tracing_disabled(True)
    async with MCPServerStdio({"command": sys.executable, "args": [__file__, "serve"]}) as calculator:
        agent = Agent(name="calculator", mcp_servers=[calculator], model="policy")
        result = await Runner.run(agent, json.load(sys.stdin)["main_query"])
    print(json.dumps({"final_answer": result.final_output}))


if sys.argv[1:] == ["serve"]:
    serve()
else:
    asyncio.run(main())
