"""DSPy: a typed prediction by each adapter, and ReAct with a tool."""

from typing import Literal

import dspy
from tools import weather


class Ask(dspy.Signature):
    """Say the weather."""

    question: str = dspy.InputField()
    answer: Literal["rain", "sun"] = dspy.OutputField()


def said(url: str) -> None:
    lm = dspy.LM("openai/box", api_base=f"{url}/v1", api_key="x", cache=False, max_tokens=200)
    with dspy.context(lm=lm, adapter=dspy.ChatAdapter()):
        assert dspy.Predict(Ask)(question="Oslo?").answer == "rain"
    with dspy.context(lm=lm, adapter=dspy.JSONAdapter()):
        assert dspy.Predict(Ask)(question="Oslo?").answer == "rain"
        assert dspy.ReAct(Ask, tools=[weather])(question="Oslo?").answer == "rain"
