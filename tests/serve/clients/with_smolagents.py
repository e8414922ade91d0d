"""smolagents: an agent that calls a tool, and one that writes code."""

from smolagents import CodeAgent, OpenAIServerModel, ToolCallingAgent, tool
from tools import weather


def said(url: str) -> None:
    model = OpenAIServerModel("box", api_base=f"{url}/v1", api_key="x", max_tokens=200)
    assert ToolCallingAgent(tools=[tool(weather)], model=model).run("Weather?") == "rain"
    assert CodeAgent(tools=[tool(weather)], model=model).run("Weather?") == "rain"
